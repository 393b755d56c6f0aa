"""What a drafter is: it expects tokens, and the model verifies several of them in one step.

A draft token never changes an answer. The model samples every token itself, and a draft token that
differs is thrown away (see `verify.py`). So a drafter that is wrong costs time and nothing else.
"""

from __future__ import annotations

from collections import abc
from typing import Protocol

from mlc_llm.record import record
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence


class TornPages(Exception):
    """What a drafter has put into the model's pages stays there: no later token would be right."""


@record()
class Offer:
    """What a drafter could draft for a sequence."""

    length: int = 0
    """Most tokens; 0 for none."""
    kind: int = 0
    """Drafts of one kind are about equally good. How good is learnt for each kind."""


class Drafter(Protocol):
    """Drafts tokens. What it remembers of a sequence lasts until `forget`."""

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        """The offer for each sequence, at most `most[i]` tokens. Called in every step: cheap."""

    def cost(self, rows: int, depth: int) -> float:
        """Seconds that `draft` will take for `rows` sequences and up to `depth` tokens of each."""

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        """Push up to `lengths[i]` tokens on each draft. Called right after `offers`."""

    def forget(self, sequence: Sequence) -> None:
        """The sequence has ended, or begins again later."""

    def reset(self) -> None:
        """Forget every sequence."""

    def check_integrity(self) -> None:
        """AssertionError unless its bookkeeping agrees with itself."""
