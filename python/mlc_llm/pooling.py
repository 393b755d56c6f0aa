"""How the hidden vectors of a text's tokens become one vector."""

from __future__ import annotations

from typing import Literal, TypeAlias

Pooling: TypeAlias = Literal["last_token", "cls", "mean"]
"""`last_token`: the vector of the last token; `cls`: that of the first one; `mean`: the mean of
all."""
LAST_TOKEN: Pooling = "last_token"
"""Of decoders: no other token has seen the whole text."""
