"""What is decided about a request before it is queued: refused, or turned into token ids."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock
from typing import TYPE_CHECKING

from mlc_llm.errors import ContextLengthExceeded, InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.core.request_state import Branch, RequestState
from mlc_llm.serve.data import Data, TextData, TokenData
from mlc_llm.serve.metrics import RequestMetrics
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import StopStrHandler, Tokenizer

if TYPE_CHECKING:
    from mlc_llm.serve.core.grammar import Grammar, GrammarCompiler


class Admission:
    """Makes the core's `RequestState` of a `Request`, or raises `UserError` that says why not."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        vocab_size: int,
        stop_token_ids: frozenset[int],
        *,
        can_pin: bool,
        context: int,
    ) -> None:
        """can_pin: there is a prefix cache. context: tokens of a prompt and its answer together."""
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._stop_token_ids = stop_token_ids
        self._can_pin = can_pin
        self._context = context
        self._grammars: GrammarCompiler | None = None
        self._grammars_lock = Lock()

    def accept(self, request: Request, *, arrival: int, now: float) -> RequestState:
        """Check the request and tokenise its prompt.

        Raises `ContextLengthExceeded` for a prompt that leaves no room for an answer, before it is
        tokenised where that can be seen.
        """
        config = request.generation_config
        self._refuse_pin(config)
        check_ids("logit_bias", list(config.logit_bias), self._vocab_size)
        texts = [item.text for item in request.inputs if isinstance(item, TextData)]
        self._tokenizer.check_size(texts, self._context)
        prompt = prompt_tokens(request.inputs, self._tokenizer, self._vocab_size)
        if len(prompt) >= self._context:
            raise ContextLengthExceeded(len(prompt), self._context)
        state = RequestState(
            request.request_id,
            prompt,
            config,
            arrival=arrival,
            stop_token_ids=self._stop_ids(config),
            metrics=RequestMetrics(prompt_tokens=len(prompt), added_at=now),
        )
        grammar = self.grammar(config)
        for i in range(config.n):
            matcher = None if grammar is None else grammar.matcher()
            state.branches.append(Branch(state, i, self._stops(config), matcher))
        return state

    def grammar(self, config: GenerationConfig) -> Grammar | None:
        """What the answer has to follow, if anything. Safe to call from any thread."""
        return self._compiler().compile(config.response_format) if config.needs_grammar else None

    def _compiler(self) -> GrammarCompiler:
        """The compiler of grammars, loaded with the first request that needs one."""
        from mlc_llm.serve.core.grammar import GrammarCompiler

        with self._grammars_lock:
            if self._grammars is None:
                parts = (self._tokenizer, self._vocab_size, self._stop_token_ids)
                self._grammars = GrammarCompiler(*parts)
            return self._grammars

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

    def _stops(self, config: GenerationConfig) -> StopStrHandler | None:
        if config.ignores_eos or not config.stop_strs:
            return None
        return StopStrHandler(config.stop_strs, self._tokenizer)


def prompt_tokens(inputs: Sequence[Data], tokenizer: Tokenizer, vocab_size: int) -> list[int]:
    """The token ids of all inputs in a row.

    A text at the start gets the begin-of-text token where the model wants one (and the text does
    not begin with it already, as a control token); token ids are used as they are. Raises
    `InvalidField` for an id outside the vocabulary or a prompt without tokens.
    """
    ids: list[int] = []
    for item in inputs:
        if isinstance(item, TextData):
            of_text = tokenizer.encode(item.text, special=item.special)
            ids += _start(tokenizer, of_text) if not ids else []
            ids += of_text
        elif isinstance(item, TokenData):
            ids += item.token_ids
        else:
            raise InvalidField("inputs", type(item).__name__, "should be TextData or TokenData")
    if not ids:
        raise InvalidField("prompt", "", "it has no tokens; give at least one")
    check_ids("prompt token id", ids, vocab_size)
    return ids


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise `InvalidField` naming the first id that is not in [0, vocab_size)."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        wrong = next(i for i in ids if not 0 <= i < vocab_size)
        raise InvalidField(field, wrong, f"this model's token ids are 0 to {vocab_size - 1}")


def _start(tokenizer: Tokenizer, following: list[int]) -> list[int]:
    bos = tokenizer.bos_token_id
    if not tokenizer.add_bos or bos is None or following[:1] == [bos]:
        return []
    return [bos]
