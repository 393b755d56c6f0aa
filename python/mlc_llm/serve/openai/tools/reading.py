"""What is read in the text of an answer: thoughts, text, and calls of tools."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class CallPiece:
    """The news of one call of a tool."""

    index: int
    """Counts the calls of a choice from 0."""
    id: str | None
    """Only the first piece of a call has it, and the name."""
    name: str | None
    arguments: str
    """The next part of the JSON text."""


class Reading(NamedTuple):
    """What a piece of the text has brought."""

    text: str = ""
    reasoning: str = ""
    calls: Sequence[CallPiece] = ()


class CallReader(Protocol):
    """Finds the calls in a text that comes in pieces, and keeps the rest as it is."""

    @property
    def calls(self) -> int:
        """Calls that have begun so far."""
        ...

    @property
    def is_inside(self) -> bool:
        """A call has begun and is not whole."""
        ...

    def put(self, text: str) -> Reading:
        """Add a piece of the text. What may still become a call is held back."""
        ...

    def finish(self, *, is_cut: bool) -> Reading:
        """The text has ended: what was held back. is_cut: the model did not end it. Then the
        beginning of a call that has no name yet is no text."""
        ...


def new_call_id() -> str:
    """As OpenAI's: `call_` and 24 random characters."""
    return "call_" + "".join(secrets.choice(_LETTERS) for _ in range(24))


def held_back(text: str, mark: str) -> int:
    """How many characters at the end of a text may be the beginning of `mark`."""
    longest = min(len(text), len(mark) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(mark[:n])), 0)


def joined(first: Reading, second: Reading) -> Reading:
    """Two readings in a row as one."""
    return Reading(
        first.text + second.text,
        first.reasoning + second.reasoning,
        (*first.calls, *second.calls),
    )
