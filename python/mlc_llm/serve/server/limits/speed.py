"""How fast answers end and prompts are computed, by which refused requests learn when to return."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

REMEMBERED = 64
"""Answers by which the speed is measured."""
LONGEST_RETRY_S = 60


class _Mark(NamedTuple):
    busy_s: float
    answers: int
    prompt_tokens: int


class Speed:
    """Counts in the time in which something runs. It belongs to the event loop."""

    def __init__(self) -> None:
        self._busy_s = self._since = 0.0
        self._inside = 0
        self._done = _Mark(0.0, 0, 0)
        self._marks: deque[_Mark] = deque([self._done], REMEMBERED)

    def began(self, now: float) -> None:
        """A request runs. now: in seconds."""
        self._pass_to(now)
        self._inside += 1

    def ended(self, now: float, answers: int, prompt_tokens: int) -> None:
        """A request that ran has ended. 0 for what was not computed."""
        self._pass_to(now)
        self._inside -= 1
        before = self._done
        self._done = _Mark(
            self._busy_s, before.answers + answers, before.prompt_tokens + prompt_tokens
        )
        self._marks.append(self._done)

    def seconds_for(self, answers: int, prompt_tokens: int) -> int:
        """Seconds in which so many answers end and so many prompt tokens are computed, 1 to 60."""
        first = self._marks[0]
        busy_s = self._done.busy_s - first.busy_s
        done = self._done.answers - first.answers
        tokens = self._done.prompt_tokens - first.prompt_tokens
        for_answers = busy_s * answers / done if done else 0.0
        for_tokens = busy_s * prompt_tokens / tokens if tokens else 0.0
        return max(1, min(LONGEST_RETRY_S, round(max(for_answers, for_tokens) + 0.5)))

    def _pass_to(self, now: float) -> None:
        if self._inside:
            self._busy_s += now - self._since
        self._since = now
