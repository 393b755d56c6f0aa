"""One request inside the core, and its sequences.

Every fact stands in one place. A sequence knows `prompt + generated` tokens, and `computed` of them
are in the KV pages; a step raises the second number towards the first. So a chunk of a prompt, one
decoded token and the tokens after a preemption are the same thing. There are no phases here.
"""

from __future__ import annotations

import os
from collections import abc
from functools import cached_property
from typing import TYPE_CHECKING

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Hidden, LogitBias, Sampled
from mlc_llm.serve.core.adapters import salt_of
from mlc_llm.serve.core.sequence_state import FINISH_REASON, OutputState, Progress, SamplingState

if TYPE_CHECKING:
    from mlc_llm.serve.core.adapters import Adapter
    from mlc_llm.serve.core.grammar.matcher import GrammarMatcher
    from mlc_llm.serve.core.handover_state import Handover
    from mlc_llm.serve.core.images import ImageSpan
    from mlc_llm.serve.core.prompt_scores import PromptScores
    from mlc_llm.serve.data import FinishReason
    from mlc_llm.serve.metrics import RequestMetrics
    from mlc_llm.tokenizers import StopStrHandler


class Sequence:
    """One continuation of a prompt."""

    __slots__ = (
        "generated", "grammar", "hidden", "index", "output", "progress", "request", "sampling",
    )  # fmt: skip

    def __init__(
        self,
        request: RequestState,
        index: int,
        stops: StopStrHandler | None,
        grammar: GrammarMatcher | None = None,
    ) -> None:
        """index: which of the request's sequences this is, from 0."""
        self.request = request
        self.index = index
        self.generated: list[int] = []
        self.grammar = grammar
        """What the text has to follow, if anything; it stands behind the generated tokens."""
        self.progress = Progress()
        self.sampling = SamplingState(_seed(request, index))
        self.output = OutputState(stops)
        self.hidden: tuple[int, Hidden] | None = None
        """For draft heads: how many tokens were known, the last of which was chosen with this
        hidden vector."""

    @property
    def key(self) -> tuple[int, int]:
        """The rank in the order of service: arrival of the request, then index."""
        return self.request.arrival, self.index

    @property
    def known(self) -> int:
        """Tokens of the prompt and generated tokens together."""
        return len(self.request.prompt) + len(self.generated)

    @property
    def remaining(self) -> int:
        """Known tokens that are not computed: at least 1 until the sequence ends."""
        return len(self.request.prompt) + len(self.generated) - self.progress.computed

    @property
    def is_decoding(self) -> bool:
        """Only one token remains, and it is a generated one."""
        ahead = len(self.request.prompt) + len(self.generated) - self.progress.computed
        return ahead == 1 and bool(self.generated)

    @property
    def is_prefilling(self) -> bool:
        """Some of the tokens are not computed that were known when it got its slot.

        Text that a grammar has forced since then does not count.
        """
        return self.progress.computed < self.progress.prefill_length

    @property
    def finish_reason(self) -> FinishReason | None:
        return FINISH_REASON.get(self.progress.status)

    @property
    def scores(self) -> PromptScores | None:
        """Where the scores of the prompt go, if this sequence has to compute them. The others of
        its request take the prompt over from it."""
        scores = self.request.scores
        if scores is None or self.index or scores.is_complete:
            return None
        return scores

    @property
    def is_drawn(self) -> bool:
        """The next token uses a random number. A token that the grammar forces uses none, whether
        it is added at once or chosen by the model. Raises `RequestError` as the grammar does."""
        return self.grammar is None or self.grammar.forced_token() is None

    def left(self, longest: int) -> int:
        """Tokens that it may still get. longest: the most that a sequence has."""
        request, generated = self.request, len(self.generated)
        room, most = longest - len(request.prompt), request.config.max_tokens
        return (min(room, most) if most >= 0 else room) - generated

    def tokens(self, start: int, stop: int) -> abc.Sequence[int]:
        """Known tokens from position `start` to before `stop`."""
        prompt = self.request.prompt
        behind = len(prompt)
        if start >= behind:
            return self.generated[start - behind : stop - behind]
        return prompt[start:stop] + self.generated[: max(stop - behind, 0)]

    def mark_computed(self, count: int) -> tuple[int, int]:
        """The next `count` known tokens are computed.

        Returns how many of them are computed for the first time: (of the prompt, generated).
        """
        progress = self.progress
        first, behind = max(progress.computed, progress.reached), len(self.request.prompt)
        progress.computed = end = progress.computed + count
        if end <= first:
            return 0, 0
        progress.reached = end
        of_prompt = max(min(end, behind) - first, 0)
        generated = end - first - of_prompt
        metrics = self.request.metrics
        metrics.prefill_tokens += of_prompt
        metrics.decode_tokens += generated
        return of_prompt, generated

    def commit(self, token_id: int) -> None:
        """The token is known from now on. The grammar still stands before it."""
        if self.grammar is not None and not self.is_drawn:
            self.sampling.forced += 1
        self.generated.append(token_id)
        if self.request.counts_tokens:
            counts = self.sampling.token_counts
            counts[token_id] = counts.get(token_id, 0) + 1

    def uniforms(self, count: int) -> list[float]:
        """The random numbers of the next tokens that are drawn."""
        sampling = self.sampling
        return sampling.uniforms(len(self.generated) - sampling.forced, count)

    def uniform(self, ahead: int = 0) -> float:
        """That of the next token that is drawn, or of the one `ahead` tokens behind it."""
        return self.uniforms(ahead + 1)[ahead]

    def keep_hidden(self, known_before: int, samples: abc.Sequence[Sampled]) -> None:
        """Remember the hidden vector behind which the last known token was chosen.

        samples: of a row, the first of which followed `known_before` tokens. No vector is kept if
        the last token was forced by a grammar.
        """
        index = self.known - known_before - 1
        vector = samples[index].hidden if 0 <= index < len(samples) else None
        self.hidden = None if vector is None else (self.known, vector)


class RequestState:
    """An accepted request, from `add_request` to its usage output."""

    handover: Handover | None = None
    """What its `disagg_config` wants."""
    handover_fault: str | None = None
    """Why pages from elsewhere were refused."""

    def __init__(
        self,
        request_id: str,
        prompt: list[int],
        config: GenerationConfig,
        *,
        arrival: int,
        stop_token_ids: frozenset[int],
        metrics: RequestMetrics,
        cache_salt: str = "",
        adapter: Adapter | None = None,
        scores: PromptScores | None = None,
        is_embedding: bool = False,
        second_at: int = 0,
        wants_hidden: bool = False,
        images: abc.Sequence[ImageSpan] = (),
    ) -> None:
        """arrival: number of the request in the order in which they were added. cache_salt: see
        `Request`. scores: for the log-probabilities of the prompt, if they are wanted.
        wants_hidden: draft heads read its hidden vectors. images: of the prompt."""
        self.request_id = request_id
        self.prompt, self.images = prompt, images
        self.config = config
        self.arrival = arrival
        own = int.from_bytes(os.urandom(8), "little") >> 1
        self.seed = own if config.seed is None else config.seed
        self.stop_token_ids = stop_token_ids
        """Empty with `ignore_eos`."""
        self.adapter = adapter
        is_exact = scores is not None and metrics.precision == "fast-prompts"
        self.cache_salt = salt_of(adapter, cache_salt, is_exact=is_exact)
        self.counts_tokens = _has_penalty(config)
        self.logit_bias = LogitBias(config.logit_bias)
        """One object for every token of every sequence."""
        self.metrics = metrics
        self.scores = scores
        self.is_embedding, self.second_at = is_embedding, second_at
        self.wants_hidden = wants_hidden or is_embedding
        self.embedding: abc.Sequence[float] | None = None
        """What the request is about, with `is_embedding`, once it is known."""
        self.error: str | None = None
        """Why it failed. Every sequence that had not ended then is FAILED."""
        self.sequences: list[Sequence] = []

    @cached_property
    def is_free(self) -> bool:
        """What its sequences are to choose from does not depend on their tokens so far."""
        return not (self.config.needs_grammar or self.counts_tokens or self.wants_hidden)

    @property
    def alive(self) -> list[Sequence]:
        """The sequences that have not ended."""
        return [sequence for sequence in self.sequences if not sequence.progress.status.is_end]

    @property
    def is_finished(self) -> bool:
        return not self.alive

    @property
    def worst_end(self) -> FinishReason:
        """Of all its sequences, when they have ended."""
        return FINISH_REASON[max(sequence.progress.status for sequence in self.sequences)]

    @property
    def ends_with_prompt(self) -> bool:
        """It is over when its prompt is computed: nothing is generated."""
        if self.handover is not None and self.handover.sends:
            return True
        return self.is_embedding or self.config.max_tokens == 0

    @property
    def needs_model(self) -> bool:
        """Something has to be computed for it."""
        if self.handover is not None and self.handover.sends:
            return self.handover.has_news
        return self.is_embedding or self.config.max_tokens != 0 or self.scores is not None

    @property
    def may_jump(self) -> bool:
        """Tokens that its grammar forces are added without a question to the model.

        Not so where the user wants the log-probability of each. The tokens are the same both ways,
        and so are all that follow.
        """
        mode = self.config.debug_config.grammar_execution_mode
        return mode == "jump_forward" and not self.config.logprobs

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all sequences, stop tokens included."""
        return sum(len(sequence.generated) for sequence in self.sequences)


def _has_penalty(config: GenerationConfig) -> bool:
    return bool(
        config.presence_penalty or config.frequency_penalty or config.repetition_penalty != 1.0
    )


def _seed(request: RequestState, index: int) -> int:
    """A single sequence uses the request's seed; of several, sequence i uses seed + i + 1."""
    offset = index + 1 if request.config.n > 1 else 0
    return (request.seed + offset) % 2**64  # a Random of -1 would equal that of 1
