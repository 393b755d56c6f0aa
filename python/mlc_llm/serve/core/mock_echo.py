"""`mock://echo`: the real core over a runner that repeats the prompt. For tests without a model."""

from __future__ import annotations

import json
import time
from collections import abc
from dataclasses import dataclass, field, replace

import numpy as np

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import (
    AdapterParts,
    Batch,
    BatchOutput,
    BatchRow,
    Sampled,
    Sampling,
    Scoring,
)
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import DRAFTERS
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.logprobs import LOWEST_LOGPROB
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.echo_model import EchoPace
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.tokenizers import Tokenizer

ECHO_LIMITS = {
    "max_num_sequence": 32,
    "max_single_sequence_length": 4096,
    "prefill_chunk_size": 1024,
}
ECHO = "echo"
"""What its pages belong to."""
_PAGE_SIZE = 16
_HIDDEN = 8


def echo_core(
    tokenizer: Tokenizer,
    config: EngineConfig,
    trace: EventTraceRecorder | None = None,
    pace: EchoPace | None = None,
) -> EngineCore:
    """An engine that streams the tokens of each prompt back, one a step, to every sequence.

    A sequence ends with `stop` behind the last of them, and with `length` where `max_tokens` comes
    first. Stop strings and the request's own stop tokens end it too. `config` is as from
    `echo_config`. `pace`: None is as fast as it can.
    """
    # No stop tokens: a chat prompt is full of the model's own.
    runner = EchoRunner(config, tokenizer.vocab_size, pace)
    return EngineCore(runner, tokenizer, config, trace=trace, policy=EchoPolicy())


class EchoPolicy(RequestPolicy):
    """The rules of the echo engine.

    It repeats the prompt whatever `response_format` says, so it compiles no grammar. A wrong one
    is refused by engines with a model only.
    """

    by_tokens = False

    def needs_grammar(self, config: GenerationConfig) -> bool:
        return False

    def is_complete(self, sequence: Sequence) -> bool:
        return len(sequence.generated) >= len(sequence.request.prompt)

    def usage_json(self, request: RequestState) -> str:
        """`extra` is the complete generation config, so that a test can see what arrived."""
        usage = json.loads(super().usage_json(request))
        usage["extra"] = request.config.model_dump(mode="json", by_alias=True)
        return json.dumps(usage)


class EchoRunner:
    """Implements `mlc_llm.runtime.batch.Runner`."""

    def __init__(self, config: EngineConfig, vocab_size: int, pace: EchoPace | None = None) -> None:
        sequences, context = config.max_num_sequence, config.max_single_sequence_length
        chunk = config.prefill_chunk_size
        assert sequences and context and chunk
        self.limits = RunnerLimits(
            num_pages=sequences * -(-context // _PAGE_SIZE),
            page_size=_PAGE_SIZE,
            max_num_sequence=sequences,
            max_batch_tokens=chunk,
            context_window=context,
            vocab_size=vocab_size,
            hidden_size=_HIDDEN,
        )
        self._sequences: dict[int, _EchoSequence] = {}
        self._pace = pace

    @property
    def free_pages(self) -> int:
        used = sum(-(-len(one.tokens) // _PAGE_SIZE) for one in self._sequences.values())
        return self.limits.num_pages - used

    def add_sequence(self, seq_id: int) -> None:
        assert seq_id not in self._sequences
        self._sequences[seq_id] = _EchoSequence()

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        self.add_sequence(child)
        self._sequences[child].tokens = self._sequences[parent].tokens[:length]

    def kept_states(self, seq_id: int) -> abc.Sequence[int]:
        return ()

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        raise AssertionError("there is no model that it could change")

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        sequence = self._sequences[seq_id]
        del sequence.tokens[len(sequence.tokens) - num_tokens :]
        if not sequence.has_drafts:
            sequence.prompt_length = None  # the prefix cache rolls back, for the next prompt
        sequence.has_drafts = False

    def export_pages(self, seq_id: int, length: int | None = None) -> Transfer:
        tokens = self._sequences[seq_id].tokens[:length]
        return Transfer(ECHO, len(tokens), (), (np.array(tokens, np.int32),)).sealed()

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        transfer.check(ECHO, length)
        self.add_sequence(seq_id)
        self._sequences[seq_id].tokens = transfer.tensors[0].tolist()

    def remove_sequence(self, seq_id: int) -> None:
        del self._sequences[seq_id]

    def run(self, batch: Batch) -> BatchOutput:
        if self._pace is not None:
            prompt = sum(row.prompt_tokens for row in batch.rows)
            time.sleep(self._pace.step_s + self._pace.prompt_s * prompt)
        return BatchOutput([self._run_row(row) for row in batch.rows])

    def reset(self) -> None:
        self._sequences.clear()

    def check_integrity(self) -> None:
        assert self.free_pages >= 0

    def _run_row(self, row: BatchRow) -> list[Sampled]:
        sequence = self._sequences[row.seq_id]
        sequence.tokens += row.token_ids
        drafts = max(len(row.samplings) - 1, 0)
        sequence.has_drafts = drafts > 0
        size, length = self.limits.vocab_size, len(sequence.tokens)
        scores = [] if row.scoring is None else _scores(row.scoring, size)
        found = [
            _sampled(sequence.next_token(length - drafts + i), one, size)
            for i, one in enumerate(row.samplings)
        ]
        for one, sampling in zip(found, row.samplings, strict=True):
            one.hidden = _hidden(sequence.tokens) if sampling.wants_hidden else None
        return scores + found


@dataclass
class _EchoSequence:
    tokens: list[int] = field(default_factory=list)
    prompt_length: int | None = None
    has_drafts: bool = False
    """The last row ended with draft tokens; some of them may be rolled back now."""

    def next_token(self, length: int) -> int:
        """The token behind `length` tokens. At the first call, these are the prompt."""
        if self.prompt_length is None:
            self.prompt_length = length
        return self.tokens[length - self.prompt_length]


def _sampled(token_id: int, sampling: Sampling, vocab_size: int) -> Sampled:
    if sampling.top_logprobs < 0:
        return Sampled(token_id)
    others = range(1, min(sampling.top_logprobs, vocab_size))
    top = [(token_id, 0.0), *(((token_id + i) % vocab_size, LOWEST_LOGPROB) for i in others)]
    return Sampled(token_id, 0.0, tuple(top[: sampling.top_logprobs]))


def _scores(scoring: Scoring, vocab_size: int) -> list[Sampled]:
    """Every token of the prompt is certain."""
    sampling = Sampling(top_logprobs=scoring.top)
    return [_sampled(token, sampling, vocab_size) for token in scoring.next_ids]


def _hidden(tokens: abc.Sequence[int]) -> list[float]:
    """How often each remainder of a token occurs: something that depends on the text."""
    counts = [0.0] * _HIDDEN
    for token in tokens:
        counts[token % _HIDDEN] += 1.0
    return counts


def echo_config(config: EngineConfig) -> EngineConfig:
    """The config with the echo engine's limits where they are None.

    Raises `InvalidField` for a limit that it cannot keep.
    """
    if config.speculative_mode in DRAFTERS:
        words = (
            "the echo engine has no draft model and no heads; take 'prompt_lookup' or leave it out"
        )
        raise InvalidField("speculative_mode", config.speculative_mode, words)
    if config.kv_cache_dtype != "auto":
        words = "the echo engine has no keys and values; leave it out"
        raise InvalidField("kv_cache_dtype", config.kv_cache_dtype, words)
    limits = {name: _within(config, name, limit) for name, limit in ECHO_LIMITS.items()}
    total = limits["max_num_sequence"] * limits["max_single_sequence_length"]
    if config.max_total_sequence_length not in (None, total):
        raise InvalidField(
            "max_total_sequence_length",
            config.max_total_sequence_length,
            f"the echo engine has room for all its sequences: leave it out or give {total}",
        )
    is_open = config.speculative_mode == "auto"
    return replace(
        config,
        mode=config.mode or "local",
        speculative_mode="disable" if is_open else config.speculative_mode,
        max_num_sequence=limits["max_num_sequence"],
        max_single_sequence_length=limits["max_single_sequence_length"],
        prefill_chunk_size=limits["prefill_chunk_size"],
        max_total_sequence_length=total,
    )


def _within(config: EngineConfig, name: str, limit: int) -> int:
    """A field of `config`, or `limit` where it is None. Raises `InvalidField` beyond `limit`."""
    given: int | None = getattr(config, name)
    if given is not None and given > limit:
        raise InvalidField(name, given, f"the echo engine's limit is {limit}")
    return given or limit
