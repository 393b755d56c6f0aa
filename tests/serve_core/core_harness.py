"""A core over the fake runner, and a reader of everything it says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from mlc_llm.errors import ContextLengthExceeded
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.limits import Window
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import RequestStreamOutput, TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.fake_runner import FakeRunner

VOCAB = 300
PIECES = {256: b"Hello", 257: b", wor", 258: b"ld!", 259: b"STOP", 260: b"xxSTOPyy", 261: b"STO"}


class PieceTokenizer:
    """Ids below 256 are bytes, a few above are longer pieces, the rest are single letters."""

    vocab_size = VOCAB
    encoded = 0
    """Characters, in all calls."""
    add_bos = False
    bos_token_id: int | None = None
    eos_token_ids: frozenset[int] = frozenset()

    special_tokens: ClassVar[dict[str, int]] = {}

    def split_control(self, text: str) -> list[str | int]:
        return [text]

    def encode_segments(self, segments: Sequence[str | int]) -> list[int]:
        return self.encode("".join(map(str, segments)))

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return PIECES.get(token_id, b"z")

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        self.encoded += len(text)
        return list(text.encode())

    def check_size(self, texts: Iterable[str], max_tokens: int) -> None:
        fewest = sum(map(len, texts)) // max(map(len, PIECES.values()))
        if fewest > max_tokens:
            raise ContextLengthExceeded(fewest, max_tokens, at_least=True)

    def decode(self, ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, ids)).decode(errors="replace")


@dataclass
class Seen:
    """All that was said about one request."""

    tokens: list[list[int]]
    reasons: list[str | None]
    logprobs: list[list[str]]
    cut: list[int]
    usage: dict[str, Any] | None = None
    error: str | None = None
    last_step: int = -1
    prompt_logprobs: list[str] | None = None
    embedding: Sequence[float] | None = None


@dataclass
class Harness:
    """Drives a core; every output is checked against the rules that hold for all of them."""

    runner: FakeRunner = field(default_factory=FakeRunner)
    config: EngineConfig = field(default_factory=EngineConfig)
    stop_token_ids: Sequence[int] = ()
    trace: Any = None
    drafter: Any = None
    clock: Callable[[], float] = time.perf_counter
    expected_error: str = "no error"
    images: Any = None

    def __post_init__(self) -> None:
        self.tokenizer = PieceTokenizer()
        self.core = EngineCore(
            self.runner,
            self.tokenizer,  # type: ignore[arg-type]
            self.config,
            stop_token_ids=self.stop_token_ids,
            trace=self.trace,
            drafter=self.drafter,
            clock=self.clock,
            images=self.images,
        )
        self.seen: dict[str, Seen] = {}
        self.steps = 0

    def add(self, request_id: str, prompt: Sequence[int], **config: Any) -> None:
        values = {"temperature": 0.0, "max_tokens": 8, **config}
        request = Request(request_id, [TokenData(prompt)], GenerationConfig(**values))
        self.add_request(request)

    def add_request(self, request: Request) -> None:
        n = request.generation_config.n
        outputs = self.core.add_request(request)
        self.seen[request.request_id] = Seen(
            [[] for _ in range(n)], [None] * n, [[] for _ in range(n)], [0] * n
        )
        self.take(outputs)

    def abort(self, request_id: str) -> None:
        self.take(self.core.abort_request(request_id))

    def reset(self) -> None:
        self.take(self.core.reset())

    def step(self) -> list[RequestStreamOutput]:
        outputs = self.core.step()
        self.take(outputs)
        self.steps += 1
        return outputs

    def run(self, limit: int = 2000) -> dict[str, Seen]:
        """Step to the end; only what the prefix cache knows may be left then."""
        while not self.core.is_idle:
            assert self.steps < limit, "the engine spins"
            self.step()
            self.core.check_integrity()
        self.core.check_integrity()
        self.check_cache()
        assert all(seen.usage is not None for seen in self.seen.values())
        return self.seen

    def check_cache(self) -> None:
        """What the prefix cache keeps is what the pages hold, token by token."""
        cache = self.core.prefix_cache
        for seq_id in (*cache.recycling, *cache.pinned):
            pairs = zip(self.runner.tokens_of(seq_id), cache.tokens(seq_id), strict=True)
            assert all(held in (known, -1) for held, known in pairs)  # -1: outside the window
        if self.core.is_idle:
            assert len(self.runner.sequences) == cache.num_sequences

    def take(self, outputs: list[RequestStreamOutput]) -> None:
        for output in outputs:
            seen = self.seen[output.request_id]
            assert seen.usage is None, "nothing follows the usage"
            seen.last_step = self.steps
            if output.prompt_logprob_json_strs is not None:
                assert seen.prompt_logprobs is None, "they come once"
                seen.prompt_logprobs = output.prompt_logprob_json_strs
            seen.embedding = seen.embedding or output.embedding
            _, sequences = output.unpack()
            usage = sequences[0].request_final_usage_json_str
            if usage is not None:
                assert all(seen.reasons), "the usage comes after every sequence has ended"
                seen.usage = json.loads(usage)
                continue
            for i, sequence in enumerate(sequences):
                self._take_sequence(seen, i, sequence)

    def _take_sequence(self, seen: Seen, i: int, sequence: Any) -> None:
        if seen.reasons[i] is not None:
            assert not sequence.delta_token_ids and sequence.finish_reason is None
        seen.tokens[i] += sequence.delta_token_ids
        seen.logprobs[i] += sequence.delta_logprob_json_strs or []
        seen.reasons[i] = seen.reasons[i] or sequence.finish_reason
        seen.cut[i] = seen.cut[i] or sequence.cut_bytes
        assert sequence.error is None or self.expected_error in sequence.error
        seen.error = seen.error or sequence.error

    def text(self, request_id: str, sequence: int = 0) -> bytes:
        seen = self.seen[request_id]
        whole = b"".join(map(PieceTokenizer().token_bytes, seen.tokens[sequence]))
        return whole[: len(whole) - seen.cut[sequence]]


def alone(
    request_id: str, prompt: Sequence[int], window: Window | None = None, **config: Any
) -> list[list[int]]:
    """The tokens of a request that has a large engine for itself, and no prefix cache."""
    harness = Harness(
        FakeRunner(num_pages=256, max_num_sequence=16, max_batch_tokens=256, window=window),
        EngineConfig(prefix_cache_mode="disable"),
    )
    harness.add(request_id, prompt, **config)
    return harness.run()[request_id].tokens


def prompt_of(length: int, start: int = 0) -> list[int]:
    return [(start + 7 * i) % 256 for i in range(length)]
