"""What happens to cache blocks, as plain values."""

from __future__ import annotations

from array import array
from typing import TypeAlias

from mlc_llm.record import record


@record()
class Stored:
    """Blocks that are there now and were not before. Each one follows the one before it."""

    keys: tuple[int, ...]
    parent: int | None
    """The key of the block before the first one; None: it is the first of a prompt."""
    tokens: array[int]
    """Of all the blocks, one behind the other."""
    salt: str = ""
    """`salt_digest` of the salt of the prompts; empty without one."""


@record()
class Removed:
    """Blocks that are not there any more, the last one of a sequence first."""

    keys: tuple[int, ...]


@record()
class Cleared:
    """No block is there any more."""


CacheEvent: TypeAlias = Stored | Removed | Cleared
