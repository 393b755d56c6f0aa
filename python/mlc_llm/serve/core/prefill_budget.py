"""How long a step takes, learnt from those so far, so that prompts never stall other streams."""

from __future__ import annotations

LEAST = 16
"""Prompt tokens of a step whatever the clock says: a prompt always gets on."""
WEIGHT = 0.25
"""Of the newest step in the moving averages."""


class Pace:
    """Chooses how many prompt tokens may join a step in which other sequences decode.

    Times are in seconds. Only the size of chunks depends on the clock, never a token: what a
    sequence computes is the same however its prompt is cut.
    """

    def __init__(self, budget: float) -> None:
        """`budget`: what a step with decoding sequences in it may take."""
        self._budget = budget
        self._decode_step = 0.0
        self._prompt_token: float | None = None

    def learn(self, seconds: float, *, prompt_tokens: int, decoding: int) -> None:
        """A step took so long. What it took beyond a usual decode step went into the prompt."""
        if prompt_tokens == 0:
            self._decode_step = _mixed(self._decode_step or seconds, seconds)
            return
        beyond = max(seconds - (self._decode_step if decoding else 0.0), 0.1 * seconds)
        each, known = beyond / prompt_tokens, self._prompt_token
        self._prompt_token = each if known is None else _mixed(known, each)

    def allowance(self, most: int) -> int:
        """Prompt tokens that fit beside decoding sequences: LEAST to `most`, which is the answer
        while nothing is known."""
        if not self._prompt_token:
            return most
        room = int((self._budget - self._decode_step) / self._prompt_token)
        return max(min(LEAST, most), min(room, most))


def _mixed(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)
