"""Drafters: who guesses what the model will say next, so that one step can check several tokens.

A guess never changes a token: the model samples every one itself, and a guess that differs is
thrown away (see `speculation.py`). So a drafter may be as wrong as it likes; it costs time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mlc_llm.serve.core.request_state import Branch
from mlc_llm.serve.core.speculation.draft_sequence import Outlook


@dataclass(frozen=True)
class Offer:
    """What a drafter could guess for a branch."""

    length: int = 0
    """Most tokens; 0 for none."""
    kind: int = 0
    """Guesses of one kind are about equally good: how good is learnt for each kind apart."""


class Drafter(Protocol):
    """Guesses tokens. What it remembers of a branch lasts until `forget`."""

    def offers(self, branches: Sequence[Branch], most: Sequence[int]) -> list[Offer]:
        """What there is for each branch, at most `most[i]` tokens. Cheap: called in every step."""

    def cost(self, rows: int, depth: int) -> float:
        """Seconds that `draft` will take for so many branches and `depth` tokens of each."""

    def draft(self, outlooks: Sequence[Outlook], lengths: Sequence[int]) -> None:
        """Push up to `lengths[i]` tokens on each. Called right after `offers`."""

    def forget(self, branch: Branch) -> None:
        """The branch has ended, or begins again later."""

    def reset(self) -> None:
        """Forget every branch."""

    def check_integrity(self) -> None:
        """AssertionError unless its bookkeeping agrees with itself."""
