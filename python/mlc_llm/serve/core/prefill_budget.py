"""How many prompt tokens may join a step in which other sequences decode.

Each prompt that waits for its first token brings time of its own to the step. So a single prompt
hardly delays the streams that run, and many prompts fill the step: otherwise the first tokens of a
crowd would come later the more streams run, and no stream would be the faster for it, because the
work is the same. What a stream waits is bounded by the most tokens of a step.
"""

from __future__ import annotations

LEAST = 16
"""Prompt tokens of a step whatever the clock says: a prompt always gets on."""
WEIGHT = 0.25
"""The share of the newest step in the moving averages."""


class PrefillBudget:
    """Learns what prompt tokens cost, so that prompts delay the streams that run by so much only.

    Times are in seconds. The clock decides only how a prompt is cut into chunks. The tokens are the
    same however it is cut.
    """

    def __init__(self, prompt_seconds: float) -> None:
        """prompt_seconds: what each waiting prompt may add to a step with decoding sequences."""
        self._prompt_seconds = prompt_seconds
        self._decode_step = 0.0
        self._prompt_token: float | None = None

    def learn(self, seconds: float, *, prompt_tokens: int, decoding: int) -> None:
        """A step took `seconds`. What exceeds a usual decode step was spent on the prompts.

        A row that decodes costs at least as much as a prompt token. That bounds the prompts' part
        while no step of late has only decoded, and more sequences decode now than then.
        """
        if prompt_tokens == 0:
            self._decode_step = _mixed(self._decode_step or seconds, seconds)
            return
        beyond = seconds - (self._decode_step if decoding else 0.0)
        beyond = min(beyond, seconds * prompt_tokens / (prompt_tokens + decoding))
        each, known = max(beyond, 0.1 * seconds) / prompt_tokens, self._prompt_token
        self._prompt_token = each if known is None else _mixed(known, each)

    def allowance(self, most: int, prompts: int) -> int:
        """Prompt tokens that fit beside decoding sequences: LEAST to `most`. prompts: those that
        wait or are under way.

        While nothing is known, that is `most`.
        """
        if not self._prompt_token:
            return most
        room = int(max(prompts, 1) * self._prompt_seconds / self._prompt_token)
        return max(min(LEAST, most), min(room, most))


def _mixed(old: float, new: float) -> float:
    return old + WEIGHT * (new - old)
