"""How the hidden vectors of a text's tokens become one vector."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

Pooling: TypeAlias = Literal["last_token", "cls", "mean"]
"""`last_token`: the vector of the last token; `cls`: that of the first one; `mean`: the mean of
all."""
POOLINGS: tuple[Pooling, ...] = get_args(Pooling)
LAST_TOKEN: Pooling = "last_token"
"""Of decoders: no other token has seen the whole text."""


def encoder_pooling(said: str | None) -> Pooling:
    """Of an encoder whose files say this; the mean, as in sentence-transformers, if they say
    nothing, or what it cannot do."""
    return next((one for one in POOLINGS if one == said), "mean")
