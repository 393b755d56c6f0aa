"""Lets requests into one engine, so many at a time as it can use.

All others wait here and not in the engine, because here they can be put into a fair order. The
engine always has a few more than it computes: prompts for some steps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from mlc_llm.serve.server.errors import overloaded
from mlc_llm.serve.server.limits.fair_queue import ANSWER_WEIGHT, FairQueue
from mlc_llm.serve.server.limits.speed import Speed
from mlc_llm.serve.server.limits.tenants import Tenant

STEPS_AHEAD = 2
"""Steps for which the engine may have prompts that it has not begun."""
FIRST_GUESS = 128.0
"""Tokens of an answer, before any has ended."""


@dataclass(eq=False)
class Turn:
    """The turn of one request: it waits, then is inside, then is over. `Turns` knows which."""

    tenant: Tenant
    answers: int
    prompt_tokens: int
    came: asyncio.Future[None]
    charged: float = field(default=0.0)
    """Expected tokens of its answers that were charged."""


class Turns:
    """The waiting room of one engine. It belongs to the event loop."""

    def __init__(
        self,
        answers: int,
        step_tokens: int,
        most_tokens: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """answers: those that the engine computes at a time. step_tokens: of a step. most_tokens:
        prompt tokens that may wait."""
        self.places = answers
        self._ahead = STEPS_AHEAD * step_tokens
        self._most_tokens, self._clock = most_tokens, clock
        self._queue: FairQueue[Turn] = FairQueue()
        self._inside: set[Turn] = set()
        self._unstarted: set[Turn] = set()
        """Those inside that have no token yet."""
        self._usual_answer = FIRST_GUESS
        self.speed = Speed()
        self.waiting_tokens = 0

    @property
    def num_waiting(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    def ask(
        self, tenant: Tenant, answers: int, prompt_tokens: int, *, arrival: float, priority: int
    ) -> Turn:
        """Wait for `turn.came`, and call `end` when the answer has ended or nobody wants it.

        Raises `HTTPError` (503) if too many prompt tokens wait.
        """
        too_many = self.waiting_tokens + prompt_tokens - self._most_tokens
        if too_many > 0 and self.waiting_tokens:
            words = f"{self.waiting_tokens} prompt tokens wait, and no more than "
            words += f"{self._most_tokens} may; this prompt has {prompt_tokens}"
            raise overloaded(words, retry_s=self.speed.seconds_for(0, too_many))
        came = asyncio.get_running_loop().create_future()
        turn = Turn(tenant, min(answers, self.places), prompt_tokens, came)
        self.waiting_tokens += prompt_tokens
        self._queue.put(tenant, turn, arrival=arrival, priority=priority)
        self._let_in()
        return turn

    def started(self, turn: Turn) -> None:
        """It has its first token, so the engine wants another prompt. Nothing happens if it is
        over: the end of a request that was aborted comes after the end of its turn."""
        if turn in self._unstarted:
            self._unstarted.remove(turn)
            self._let_in()

    def end(self, turn: Turn, answer_tokens: int | None = None) -> None:
        """It is over, or is not wanted any more. It may be called more than once. answer_tokens:
        of all its answers, if that is known."""
        if turn in self._inside:
            self._leave(turn, answer_tokens)
        elif self._queue.remove(turn.tenant, turn):
            self.waiting_tokens -= turn.prompt_tokens
        self._let_in()

    def _leave(self, turn: Turn, answer_tokens: int | None) -> None:
        has_started = turn not in self._unstarted
        self._inside.remove(turn)
        self._unstarted.discard(turn)
        if answer_tokens is not None:
            self._learn(turn, answer_tokens)
        self.speed.ended(
            self._clock(),
            0 if answer_tokens is None else turn.answers,
            turn.prompt_tokens if has_started else 0,
        )
        self._queue.ended(turn.tenant)

    def _learn(self, turn: Turn, answer_tokens: int) -> None:
        """Charge what the answer has really cost."""
        self._queue.charge(turn.tenant, ANSWER_WEIGHT * (answer_tokens - turn.charged))
        self._usual_answer += (answer_tokens / turn.answers - self._usual_answer) / 16

    def _let_in(self) -> None:
        while (turn := self._queue.first()) is not None and self._has_place(turn):
            turn.charged = turn.answers * self._usual_answer
            self._queue.take(turn.prompt_tokens + ANSWER_WEIGHT * turn.charged)
            self._inside.add(turn)
            self._unstarted.add(turn)
            self.waiting_tokens -= turn.prompt_tokens
            self.speed.began(self._clock())
            if not turn.came.done():
                turn.came.set_result(None)

    def _has_place(self, turn: Turn) -> bool:
        """Counted anew each time: a sum that is kept can go wrong, and then it stays wrong."""
        if sum(one.answers for one in self._inside) + turn.answers > self.places:
            return False
        ahead = sum(one.prompt_tokens for one in self._unstarted)
        return not self._unstarted or ahead + turn.prompt_tokens <= self._ahead
