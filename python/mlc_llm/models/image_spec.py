"""What a tower of images has that other models have not, and how a decoder takes its vectors."""

from __future__ import annotations

from typing import Literal, TypeAlias

from mlc_llm.record import record

Join: TypeAlias = Literal["mean", "beside"]
"""How a square of patches becomes one token: their mean, with a norm behind it (Gemma 3), or their
vectors side by side (Idefics 3)."""
Sight: TypeAlias = Literal["before", "whole"]
"""What a token of an image sees of it: the tokens before it, or all of its tokens."""


@record()
class TowerSpec:
    """The vectors of an image's patches behind the last layer become those of its tokens."""

    side: int
    """Patches in a row of an image, and in a column."""
    patch_numbers: int
    """Of one patch in all colours, and zeros behind them to a multiple of 32."""
    pooled_side: int
    """Tokens in a row of an image, and in a column."""
    width: int
    """Numbers of a token's vector, as of the language model."""
    join: Join = "mean"
    join_eps: float = 1e-6
    """Of the norm behind a mean."""

    @property
    def patches(self) -> int:
        return self.side**2

    @property
    def tokens(self) -> int:
        """Of an image."""
        return self.pooled_side**2

    @property
    def scale(self) -> int:
        """Patches in a row that become one token."""
        return self.side // self.pooled_side

    def joined(self, hidden: int) -> int:
        """Numbers of what the last matrix reads."""
        return hidden if self.join == "mean" else hidden * self.scale**2
