"""One request inside the core: its prompt, its branches, and how far each of them has got.

Every fact stands once. A branch knows `prompt + generated` tokens and has `computed` of them in the
KV pages; a step lets the second number catch up with the first. A chunk of a prompt, one decoded
token and the way back after a preemption are the same thing, so there are no phases here.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import LogitBias

if TYPE_CHECKING:
    from mlc_llm.runtime.batch import Sampling
    from mlc_llm.serve.core.grammar.matcher import GrammarMatcher
    from mlc_llm.serve.data import FinishReason
    from mlc_llm.serve.metrics import RequestMetrics
    from mlc_llm.tokenizers import StopStrHandler


class Status(IntEnum):
    """Life of a branch, in order; everything from STOPPED on is an end."""

    WAITING = 0
    """Owns no sequence: new, or preempted."""
    RUNNING = 1
    """Owns a sequence in the runner."""
    STOPPED = 2
    LENGTH = 3
    ABORTED = 4
    FAILED = 5

    is_end: bool

    def __init__(self, place: int) -> None:
        self.is_end = place >= 2  # asked for several times a token: no property


FINISH_REASON: dict[Status, FinishReason] = {
    Status.STOPPED: "stop",
    Status.LENGTH: "length",
    Status.ABORTED: "abort",
    Status.FAILED: "error",
}


class Branch:
    """One continuation of a prompt. Only a branch has a sequence in the runner."""

    __slots__ = (
        "_rng",
        "_uniforms",
        "computed",
        "cut_bytes",
        "delta_ids",
        "delta_logprobs",
        "generated",
        "grammar",
        "held_logprobs",
        "index",
        "is_reported",
        "lasting_sampling",
        "prefill_length",
        "reached",
        "request",
        "seq_id",
        "status",
        "stops",
        "token_counts",
    )

    def __init__(
        self,
        request: RequestState,
        index: int,
        stops: StopStrHandler | None,
        grammar: GrammarMatcher | None = None,
    ) -> None:
        self.request = request
        self.index = index
        self.status = Status.WAITING
        self.seq_id: int | None = None
        self.computed = 0
        """Tokens in the runner's pages."""
        self.prefill_length = 0
        """Tokens known when it got its sequence."""
        self.reached = 0
        """The most that `computed` ever was: what lies before is computed again after a
        preemption."""
        self.generated: list[int] = []
        self.token_counts: dict[int, int] = {}
        """Of the generated tokens; kept only while a penalty reads it."""
        self.grammar = grammar
        """What the text has to follow, if anything; stands behind the generated tokens."""
        self.stops = stops
        self.held_logprobs: deque[str] = deque()
        """Of the tokens that `stops` holds back."""
        self.delta_ids: list[int] = []
        self.delta_logprobs: list[str] = []
        self.cut_bytes = 0
        """Of the last token shown: they belong to a stop string."""
        self.is_reported = False
        """Whether its finish reason was given out."""
        self.lasting_sampling: Sampling | None = None
        """How every token is chosen, once that is known to stay so."""
        self._rng: random.Random | None = None
        self._uniforms: list[float] = []
        """Drawn, and not used up yet."""

    @property
    def key(self) -> tuple[int, int]:
        """Place in the order of service: by arrival of the request, then by branch."""
        return self.request.arrival, self.index

    @property
    def known(self) -> int:
        """Tokens of the prompt and generated ones together."""
        return len(self.request.prompt) + len(self.generated)

    @property
    def remaining(self) -> int:
        """Tokens known and not yet computed; at least 1 while the branch is alive."""
        return len(self.request.prompt) + len(self.generated) - self.computed

    @property
    def is_decoding(self) -> bool:
        """One generated token is all that is left to compute."""
        return bool(self.generated) and self.remaining == 1

    @property
    def is_prefilling(self) -> bool:
        """The prompt is under way, or all that was known at a preemption; text that a grammar has
        forced since then is not."""
        return self.computed < self.prefill_length

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASON.get(self.status)

    def tokens(self, start: int, stop: int) -> Sequence[int]:
        """Known tokens from one place to another."""
        prompt = self.request.prompt
        behind = len(prompt)
        if start >= behind:
            return self.generated[start - behind : stop - behind]
        return prompt[start:stop] + self.generated[: max(stop - behind, 0)]

    def next_tokens(self, count: int) -> Sequence[int]:
        """The next `count` known tokens that are not computed."""
        return self.tokens(self.computed, self.computed + count)

    def uniform(self, ahead: int = 0) -> float:
        """The random number of the next sampled token, or of the one so far ahead: the same until
        that token is committed, so a step that is planned twice (after a preemption or a fault)
        changes nothing."""
        while len(self._uniforms) <= ahead:
            if self._rng is None:
                self._rng = random.Random(_branch_seed(self.request, self.index))
            self._uniforms.append(self._rng.random())
        return self._uniforms[ahead]

    def begin(self, seq_id: int, length: int) -> None:
        """It runs from now on, in a sequence that has its first `length` tokens already."""
        self.status, self.seq_id, self.computed = Status.RUNNING, seq_id, length
        self.prefill_length = self.known
        self.reached = max(self.reached, length)

    def account(self, count: int) -> tuple[int, int]:
        """The next `count` known tokens are computed.

        Returns how many of them never were before: (of the prompt, of the generated ones).
        """
        first, behind = max(self.computed, self.reached), len(self.request.prompt)
        self.computed = end = self.computed + count
        if end <= first:
            return 0, 0
        self.reached = end
        of_prompt = max(min(end, behind) - first, 0)
        generated = end - first - of_prompt
        metrics = self.request.metrics
        metrics.prefill_tokens += of_prompt
        metrics.decode_tokens += generated
        return of_prompt, generated

    @property
    def is_drawn(self) -> bool:
        """Whether the next token uses a random number: one that its grammar forces does not, be it
        added unasked or chosen by the model. Raises `RequestError` as the grammar does."""
        return self.grammar is None or self.grammar.forced_token() is None

    def commit(self, token_id: int) -> None:
        """The token is known from now on; the grammar stands before it still."""
        if self.is_drawn:
            del self._uniforms[:1]
        self.generated.append(token_id)
        if self.request.counts_tokens:
            self.token_counts[token_id] = self.token_counts.get(token_id, 0) + 1


class RequestState:
    """An accepted request from `add_request` to its usage output."""

    def __init__(
        self,
        request_id: str,
        prompt: list[int],
        config: GenerationConfig,
        *,
        arrival: int,
        stop_token_ids: frozenset[int],
        metrics: RequestMetrics,
    ) -> None:
        self.request_id = request_id
        self.prompt = prompt
        self.config = config
        self.arrival = arrival
        self.seed = random.getrandbits(63) if config.seed is None else config.seed
        self.stop_token_ids = stop_token_ids
        """Empty with `ignore_eos`."""
        self.counts_tokens = _has_penalty(config)
        self.logit_bias = LogitBias(config.logit_bias)
        """Of every token of every branch: one object."""
        self.metrics = metrics
        self.error: str | None = None
        """Why it failed; every branch that was alive then is FAILED."""
        self.branches: list[Branch] = []

    @property
    def alive(self) -> list[Branch]:
        """The branches that have not ended."""
        return [branch for branch in self.branches if not branch.status.is_end]

    @property
    def is_finished(self) -> bool:
        return not self.alive

    @property
    def may_jump(self) -> bool:
        """Whether tokens that its grammar forces are added unasked; not where the log-probability
        of each is wanted. The tokens are the same, and so are all that follow."""
        mode = self.config.debug_config.grammar_execution_mode
        return mode == "jump_forward" and not self.config.logprobs

    @property
    def completion_tokens(self) -> int:
        """Tokens sampled by all branches, stop tokens included."""
        return sum(len(branch.generated) for branch in self.branches)


def _has_penalty(config: GenerationConfig) -> bool:
    return bool(
        config.presence_penalty or config.frequency_penalty or config.repetition_penalty != 1.0
    )


def _branch_seed(request: RequestState, index: int) -> int:
    """A single branch uses the seed itself; of several, branch i uses seed + i + 1."""
    offset = index + 1 if request.config.n > 1 else 0
    return (request.seed + offset) % 2**64  # a Random of -1 would equal that of 1
