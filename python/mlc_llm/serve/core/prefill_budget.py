"""How many prompt tokens may join a step in which other sequences decode."""

from __future__ import annotations

LEAST = 16
"""Prompt tokens of a step whatever the clock says: a prompt always gets on."""
WEIGHT = 0.25
"""The share of the newest step in the moving averages."""


class PrefillBudget:
    """Learns what prompt tokens cost, so that a prompt does not delay the streams that run.

    Times are in seconds. The clock decides only how a prompt is cut into chunks. The tokens are the
    same however it is cut.
    """

    def __init__(self, step_seconds: float) -> None:
        """step_seconds: what a step with decoding sequences may take."""
        self._step_seconds = step_seconds
        self._decode_step = 0.0
        self._prompt_token: float | None = None

    def learn(self, seconds: float, *, prompt_tokens: int, decoding: int) -> None:
        """A step took `seconds`. What exceeds a usual decode step was spent on the prompt."""
        if prompt_tokens == 0:
            self._decode_step = _mixed(self._decode_step or seconds, seconds)
            return
        beyond = max(seconds - (self._decode_step if decoding else 0.0), 0.1 * seconds)
        each, known = beyond / prompt_tokens, self._prompt_token
        self._prompt_token = each if known is None else _mixed(known, each)

    def allowance(self, most: int) -> int:
        """Prompt tokens that fit beside decoding sequences: LEAST to `most`.

        While nothing is known, that is `most`.
        """
        if not self._prompt_token:
            return most
        room = int((self._step_seconds - self._decode_step) / self._prompt_token)
        return max(min(LEAST, most), min(room, most))


def _mixed(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)
