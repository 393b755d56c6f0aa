"""From a request to its state in the core: it is refused, or becomes token ids."""

from __future__ import annotations

import math
import time
from collections import abc
from dataclasses import field, replace
from threading import Lock
from typing import TYPE_CHECKING

from mlc_llm.errors import ContextLengthExceeded, InvalidField, UnsupportedModel, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.messages import NO_IMAGES
from mlc_llm.record import record
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import HEAD_MODES
from mlc_llm.serve.core.adapters import Adapter, Adapters, no_adapters
from mlc_llm.serve.core.handover import FIELD, handover_of
from mlc_llm.serve.core.handover_state import Handover
from mlc_llm.serve.core.images import ImageSpan, image_ids, image_spans
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.core.prompt_scores import PromptScores
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.data import Data, ImageData, TextData, TokenData
from mlc_llm.serve.metrics import RequestMetrics
from mlc_llm.serve.request import NO_SCORES, NO_TEXT, RANKS_ONLY, Request
from mlc_llm.tokenizers import StopStrHandler, StopStrings, Tokenizer

if TYPE_CHECKING:
    from mlc_llm.images.picture import Picture
    from mlc_llm.images.reader import ImageReader
    from mlc_llm.serve.core.grammar.compiler import GrammarCompiler
    from mlc_llm.serve.core.grammar.matcher import Grammar


@record()
class Prepared:
    """The parts of a request that take time and need no engine. They are never changed."""

    prompt: list[int] = field(default_factory=list)
    images: abc.Sequence[ImageSpan] = ()
    stops: StopStrings | None = None
    grammar: Grammar | None = None
    handover: Handover | None = None
    error: UserError | None = None
    """Why the request is refused. Then the other fields mean nothing."""
    arrived: float = math.inf
    """When that was done, on the clock of the engine: it may be added much later. Infinite: not
    known."""


class Admission:
    """Makes the core's `RequestState` of a `Request`, or raises a `UserError` with the reason.

    Any thread may call `prepare`; only the core calls `accept`.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        limits: RunnerLimits,
        config: EngineConfig,
        stop_token_ids: frozenset[int],
        policy: RequestPolicy,
        *,
        adapters: Adapters | None = None,
        images: ImageReader | None = None,
        clock: abc.Callable[[], float] = time.perf_counter,
    ) -> None:
        """stop_token_ids: the model's own; a request may name more. images: None for a model that
        reads none. clock: of the engine, in seconds."""
        self._clock = clock
        self._images = images
        self._adapters = no_adapters() if adapters is None else adapters
        self._tokenizer = tokenizer
        self._vocab_size, self._precision = limits.vocab_size, limits.precision
        self._is_encoder, self._compares = limits.is_encoder, limits.scores > 0
        self._stop_token_ids = stop_token_ids
        self._policy = policy
        self._wants_hidden = config.speculative_mode in HEAD_MODES
        self._can_pin = config.prefix_cache_mode == "radix" and not limits.only_whole
        longest = limits.context_window
        self.context = min(config.max_single_sequence_length or longest, longest)
        """Most tokens of a prompt and its answer together."""
        self._grammars: GrammarCompiler | None = None
        self._grammars_lock = Lock()

    def prepare(self, request: Request) -> Prepared:
        """Check the request, tokenise its prompt, make its tables, compile its grammar.

        That takes up to seconds. A refusal is returned in `error`: `ContextLengthExceeded` for a
        prompt that leaves no room for an answer. A prompt that is far too long is not tokenised.
        """
        try:
            return self._prepare(request)
        except UserError as error:
            return Prepared(error=error)

    def accept(
        self, request: Request, prepared: Prepared, *, arrival: int, now: float
    ) -> RequestState:
        """The state of a request that `prepare` has prepared. Raises the error of a refused one."""
        if prepared.error is not None:
            raise prepared.error
        config, prompt = request.generation_config, prepared.prompt
        state = RequestState(
            request.request_id,
            prompt,
            config,
            arrival=arrival,
            stop_token_ids=self._stop_ids(config),
            metrics=self._metrics(len(prompt), min(now, prepared.arrived)),
            cache_salt=request.cache_salt,
            adapter=self._adapter(request),
            scores=self._scores(request, prompt),
            is_embedding=request.is_embedding,
            second_at=request.second_at,
            wants_hidden=self._wants_hidden,
            images=prepared.images,
        )
        state.handover = prepared.handover
        for i in range(config.n):
            state.sequences.append(self._sequence(state, i, prepared))
        return state

    def _prepare(self, request: Request) -> Prepared:
        config = request.generation_config
        self._refuse_kind(request)
        self._refuse_pin(config)
        self._adapter(request)
        check_ids("logit_bias", list(config.logit_bias), self._vocab_size)
        texts = [item.text for item in request.inputs if isinstance(item, TextData)]
        self._tokenizer.check_size(texts, self.context)
        inputs, images = self._with_pictures(request)
        prompt = prompt_tokens(inputs, self._tokenizer, self._vocab_size)
        answer = 0 if self._is_encoder else 1
        if len(prompt) > self.context - answer:
            raise ContextLengthExceeded(len(prompt), self.context, answer=answer)
        handover = self._handover(request, prompt)
        if handover is not None and handover.sends:
            prompt = prompt[: handover.end]
        spans = image_spans(prompt, images)
        stops, grammar = _stops(config), self._grammar(config)
        arrived = request.arrived or self._clock()
        return Prepared(prompt, spans, stops, grammar, handover, arrived=arrived)

    def _metrics(self, prompt_tokens: int, arrived: float) -> RequestMetrics:
        return RequestMetrics(self._precision, prompt_tokens=prompt_tokens, added_at=arrived)

    def _handover(self, request: Request, prompt: list[int]) -> Handover | None:
        wanted = request.generation_config.disagg
        if wanted is None:
            return None
        reason = None
        if not self._can_pin:
            reason = "models with windows or states, and engines without a prefix cache, do not"
        elif any(isinstance(item, ImageData) for item in request.inputs):
            reason = "prompts with images do not"
        elif request.adapter or request.prompt_logprobs is not None or request.is_embedding:
            reason = "requests with an adapter, scores of the prompt or an embedding do not"
        if reason is not None:
            raise InvalidField(FIELD, wanted.kind, f"{reason} take part in it")
        return handover_of(request.generation_config, prompt)

    def _with_pictures(self, request: Request) -> tuple[list[Data], list[Picture]]:
        """The inputs of a request with its images decoded, and these images. Raises UserError."""
        inputs = list(request.inputs)
        found: list[Picture] = []
        least = sum(isinstance(item, ImageData) for item in inputs)
        if self._images is not None and least * self._images.tokens >= self.context:
            raise ContextLengthExceeded(least * self._images.tokens, self.context)
        for i, item in enumerate(inputs):
            if isinstance(item, ImageData):
                found.append(self._picture(item, f"inputs[{i}]"))
                inputs[i] = replace(item, image=found[-1])
        if found and request.prompt_logprobs is not None:
            words = "a prompt with images has no log-probabilities; leave it out"
            raise InvalidField("prompt_logprobs", request.prompt_logprobs, words)
        return inputs, found

    def _picture(self, item: ImageData, place: str) -> Picture:
        if self._images is None:
            raise UnsupportedModel(NO_IMAGES)
        if item.embed_size not in (0, self._images.tokens):
            words = f"this model makes {self._images.tokens} vectors of an image; give that, or 0"
            raise InvalidField("ImageData.embed_size", item.embed_size, words)
        picture = _decoded(item)
        if picture is not None:
            return picture
        from mlc_llm.images.decoder import ImageFile

        assert isinstance(item.image, ImageFile), "ImageData makes it one"
        return self._images.picture(item.image, place)

    def _sequence(self, state: RequestState, index: int, prepared: Prepared) -> Sequence:
        stops, grammar = prepared.stops, prepared.grammar
        return Sequence(
            state,
            index,
            None if stops is None else StopStrHandler(stops, self._tokenizer),
            None if grammar is None else grammar.matcher(),
        )

    def _adapter(self, request: Request) -> Adapter | None:
        return self._adapters.find(request.adapter) if request.adapter else None

    def _scores(self, request: Request, prompt: list[int]) -> PromptScores | None:
        if request.prompt_logprobs is None:
            return None
        return PromptScores(prompt, request.prompt_logprobs, self._tokenizer)

    def _grammar(self, config: GenerationConfig) -> Grammar | None:
        """The grammar that the answer has to follow, if any."""
        needs_grammar = self._policy.needs_grammar(config)
        return self._compiler().compile(config.response_format) if needs_grammar else None

    def _compiler(self) -> GrammarCompiler:
        """The compiler of grammars, loaded with the first request that needs one."""
        from mlc_llm.serve.core.grammar.compiler import GrammarCompiler

        with self._grammars_lock:
            if self._grammars is None:
                parts = (self._tokenizer, self._vocab_size, self._stop_token_ids)
                self._grammars = GrammarCompiler(*parts)
            return self._grammars

    def _refuse_kind(self, request: Request) -> None:
        """Raises UserError for what this kind of model does not do."""
        if self._is_encoder and not request.is_embedding:
            raise UserError(NO_TEXT)
        if not self._policy.writes and not request.is_embedding:
            raise UserError(RANKS_ONLY)
        if request.second_at and not self._compares:
            raise UserError(NO_SCORES)

    def _refuse_pin(self, config: GenerationConfig) -> None:
        if config.pins_prompt and not self._can_pin:
            raise InvalidField(
                "debug_config.pinned_system_prompt",
                True,
                "nothing could begin with it: set prefix_cache_mode to 'radix', and no "
                "sliding_window_size",
            )

    def _stop_ids(self, config: GenerationConfig) -> frozenset[int]:
        if config.ignores_eos:
            return frozenset()
        return self._stop_token_ids.union(config.stop_token_ids)


def _decoded(item: ImageData) -> Picture | None:
    from mlc_llm.images.picture import Picture

    return item.image if isinstance(item.image, Picture) else None


def prompt_tokens(inputs: abc.Sequence[Data], tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The token ids of all inputs in a row; of images, those of `image_ids`.

    A text at the start gets the begin-of-text token where the model wants one, unless it begins
    with this token. Token ids are used as they are. Raises `InvalidField` for an id outside the
    vocabulary or a prompt without tokens.
    """
    ids: list[int] = []
    for item in inputs:
        if isinstance(item, TextData):
            of_text = tokenizer.encode(item.text, special=item.special)
            ids += _start(tokenizer, of_text) if not ids else []
            ids += of_text
        elif isinstance(item, TokenData):
            check_ids("prompt token id", item.token_ids, vocab_size)
            ids += item.token_ids
        elif isinstance(item, ImageData) and (picture := _decoded(item)) is not None:
            ids += image_ids(picture)
        else:
            known = "should be TextData, TokenData or ImageData"
            raise InvalidField("inputs", type(item).__name__, known)
    if not ids:
        raise InvalidField("prompt", "", "it has no tokens; give at least one")
    check_ids("prompt token id", [one for one in ids if one >= 0], vocab_size)
    return ids


def check_ids(field: str, ids: abc.Sequence[int], vocab_size: int) -> None:
    """Raise `InvalidField` naming the first id that is not in [0, vocab_size)."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidField(field, wrong, f"this model's token ids are 0 to {vocab_size - 1}")


def _stops(config: GenerationConfig) -> StopStrings | None:
    if config.ignores_eos or not config.stop_strs:
        return None
    return StopStrings(config.stop_strs)


def _start(tokenizer: Tokenizer, following: list[int]) -> list[int]:
    bos = tokenizer.bos_token_id
    if not tokenizer.add_bos or bos is None or following[:1] == [bos]:
        return []
    return [bos]
