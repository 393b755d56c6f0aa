"""What the prefix cache tells about the sequences that it has, to whoever wants to know."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CacheObserver(Protocol):
    """Is told of each change, on the thread of the core. It must be quick, and must not raise."""

    def begun(self, seq_id: int, source: int | None, length: int, salt: str) -> None:
        """A sequence has the first `length` tokens of the sequence `source`; None: no tokens.
        salt: only prompts of the same salt take over from it."""
        ...

    def extended(self, seq_id: int, tokens: Sequence[int]) -> None:
        """It has these tokens too, behind the others."""
        ...

    def cut(self, seq_id: int, length: int) -> None:
        """It has its first `length` tokens only."""
        ...

    def removed(self, seq_id: int) -> None:
        """It is not there any more."""
        ...

    def cleared(self) -> None:
        """No sequence is there any more."""
        ...

    def settled(self) -> None:
        """An operation of the core has ended, so what was told until now belongs together."""
        ...
