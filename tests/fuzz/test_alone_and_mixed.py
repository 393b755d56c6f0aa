"""Random requests, mixed in one engine that is short of everything, give what each gives alone.

`serve_core/test_state_machine.py` looks for wrong bookkeeping with few kinds of requests; here the
requests have everything that a user may ask for, and the second half runs compiled code. Each case
is its seed, which is in the test's name; nothing else decides what happens in it.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from eager_drafts import draft_always
from tiny_models import TinyModels

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Runner
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.data import RequestStreamOutput, TokenData
from mlc_llm.serve.request import Request
from mlc_llm.testing.byte_tokenizer import IM_END, byte_tokenizer_metadata
from mlc_llm.testing.fake_runner import FakeRunner
from mlc_llm.tokenizers import Tokenizer

pytestmark = pytest.mark.slow

LONGEST_PROMPT, MOST_TOKENS, MOST_SEQUENCES = 60, 40, 3
ROOM = LONGEST_PROMPT + MOST_TOKENS
"""Tokens for which every engine has pages: what does not fit ends elsewhere, and may."""
MOST_STEPS = 20_000
TOKENIZER = Tokenizer.from_gguf_metadata(byte_tokenizer_metadata())
SCHEMA = {
    "type": "object",
    "properties": {"the name": {"enum": ["one", "other", None]}, "there": {"type": "boolean"}},
    "required": ["the name", "there"],
    "additionalProperties": False,
}
FORMATS: list[dict[str, Any]] = [
    {"type": "json_object"},
    {"type": "json_object", "schema": json.dumps(SCHEMA)},
    {"type": "grammar", "grammar": {"syntax": "regex", "definition": "[ab]{2} and then [c-z ]+"}},
]


@dataclass
class Limits:
    """Of one engine's runner."""

    num_pages: int
    max_num_sequence: int
    max_batch_tokens: int
    window: Window | None


MakeRunner = Callable[[Limits], Runner]


@dataclass
class Asked:
    """One request of a case."""

    name: str
    prompt: list[int]
    config: dict[str, Any]
    at: int
    """The step before which it is added."""
    aborted_at: int | None


@dataclass
class Answer:
    """All that was said about a request; lists by sequence."""

    tokens: list[list[int]]
    logprobs: list[list[str]]
    reasons: list[str | None]
    cut: list[int]
    usages: int = 0


@dataclass
class Engine:
    """A core, and what it says."""

    core: EngineCore
    answers: dict[str, Answer] = field(default_factory=dict)

    def add(self, asked: Asked, **more: Any) -> None:
        config = GenerationConfig(**{**asked.config, **more})
        n = config.n
        self.answers[asked.name] = Answer(
            [[] for _ in range(n)], [[] for _ in range(n)], [None] * n, [0] * n
        )
        self.take(self.core.add_request(Request(asked.name, [TokenData(asked.prompt)], config)))

    def abort(self, name: str) -> None:
        self.take(self.core.abort_request(name))

    def step(self) -> None:
        self.take(self.core.step())
        self.core.check_integrity()

    def take(self, outputs: Sequence[RequestStreamOutput]) -> None:
        for output in outputs:
            answer = self.answers[output.request_id]
            assert answer.usages == 0, "something follows the usage"
            _, sequences = output.unpack()
            if sequences[0].request_final_usage_json_str is not None:
                answer.usages += 1
                continue
            for i, sequence in enumerate(sequences):
                assert sequence.error is None, sequence.error
                answer.tokens[i] += sequence.delta_token_ids
                answer.logprobs[i] += sequence.delta_logprob_json_strs or []
                answer.reasons[i] = answer.reasons[i] or sequence.finish_reason
                answer.cut[i] = answer.cut[i] or sequence.cut_bytes


def engine_of(runner: Runner, config: EngineConfig) -> Engine:
    core = EngineCore(runner, TOKENIZER, config, stop_token_ids=[IM_END])
    draft_always(core, 6)
    return Engine(core)


def some_limits(rng: random.Random, page_size: int) -> Limits:
    """Hardly enough of anything."""
    fewest = -(-ROOM // page_size) + 1
    windows = [None, None, Window(rng.randint(1, 40), rng.choice([0, 3, page_size]))]
    return Limits(
        num_pages=rng.randint(fewest, 3 * fewest),
        max_num_sequence=rng.randint(1, 6),
        max_batch_tokens=rng.choice([6, 7, 16, 33, 64]),
        window=rng.choice(windows),
    )


def some_config(rng: random.Random, limits: Limits) -> EngineConfig:
    drafts = limits.window is None and rng.random() < 0.5
    return EngineConfig(
        prefill_mode=rng.choice(["hybrid", "chunked"]),
        prefix_cache_mode=rng.choice(["radix", "radix", "disable"]),
        prefix_cache_max_num_recycling_seqs=rng.choice([None, 0, 1]),
        speculative_mode="prompt_lookup" if drafts else "disable",
    )


def some_request(rng: random.Random, index: int) -> Asked:
    shared = random.Random(rng.randrange(3))
    length = rng.randint(1, LONGEST_PROMPT)
    prompt = [shared.randrange(32, 127) for _ in range(length)]
    if rng.random() < 0.5:  # text that repeats itself, for those who look there
        prompt = (prompt[: rng.randint(1, 8)] * LONGEST_PROMPT)[:length]
    aborted_at = rng.randint(0, 80) if rng.random() < 0.2 else None
    return Asked(str(index), prompt, some_wishes(rng), rng.randint(0, 40), aborted_at)


def some_wishes(rng: random.Random) -> dict[str, Any]:
    """A `GenerationConfig`, in which each wish is there or not."""
    wishes: dict[str, Any] = {
        "temperature": rng.choice([0.0, 0.7, 1.0, 1.0, 1.6]),
        "seed": rng.randrange(2**32),
        "n": rng.choice([1, 1, 2, MOST_SEQUENCES]),
        "max_tokens": rng.randint(1, MOST_TOKENS),
        "logprobs": rng.random() < 0.4,
        "top_logprobs": rng.randrange(4),
    }
    may: dict[str, Any] = {
        "top_p": rng.choice([0.3, 0.9]),
        "top_k": rng.choice([1, 5, 50]),
        "min_p": rng.choice([0.05, 0.3]),
        "presence_penalty": rng.uniform(-2, 2),
        "frequency_penalty": rng.uniform(-2, 2),
        "repetition_penalty": rng.uniform(0.5, 2),
        "logit_bias": {rng.randrange(300): rng.uniform(-9, 9) for _ in range(rng.choice([1, 99]))},
        "stop_strs": rng.sample(["e", "th", "\x01", "a lo", "zz", "q"], rng.randint(1, 3)),
        "stop_token_ids": [rng.randrange(300) for _ in range(3)],
        "response_format": rng.choice(FORMATS),
        "debug_config": {
            "grammar_execution_mode": rng.choice(["jump_forward", "constraint"]),
            "ignore_eos": rng.random() < 0.3,
        },
    }
    wishes |= {name: value for name, value in may.items() if rng.random() < 0.3}
    if not wishes["logprobs"]:
        del wishes["top_logprobs"]
    return wishes


def mixed(engine: Engine, requests: Sequence[Asked]) -> dict[str, Answer]:
    """Everything at once, each request added and aborted in its time."""
    step = 0
    while step <= max(one.at for one in requests) or not engine.core.is_idle:
        assert step < MOST_STEPS, "the engine spins"
        for one in requests:
            if one.at == step:
                engine.add(one)
            elif one.aborted_at is not None and one.at + one.aborted_at == step:
                engine.abort(one.name)
        engine.step()
        step += 1
    return engine.answers


def alone(runner: Runner, asked: Asked) -> Answer:
    """The whole answer of an engine that has enough of all, with every number reported."""
    engine = engine_of(runner, EngineConfig(prefix_cache_mode="disable"))
    engine.add(asked, logprobs=True)
    while not engine.core.is_idle:
        engine.step()
    return engine.answers[asked.name]


def compare(found: Answer, whole: Answer, *, reported: bool, what: str) -> None:
    """AssertionError unless this is that answer, or the part of it before an abort."""
    assert found.usages == whole.usages == 1, what
    for i, reason in enumerate(found.reasons):
        said, expected = found.tokens[i], whole.tokens[i]
        if reason == "abort":
            assert said == expected[: len(said)], what
        else:
            assert (reason, found.cut[i]) == (whole.reasons[i], whole.cut[i]), what
            assert said == expected, what
        assert found.logprobs[i] == (whole.logprobs[i][: len(said)] if reported else []), what


def run_case(seed: int, make: MakeRunner, page_size: int, count: int) -> None:
    rng = random.Random(seed)
    limits = some_limits(rng, page_size)
    config = some_config(rng, limits)
    requests = [some_request(rng, i) for i in range(count)]
    answers = mixed(engine_of(make(limits), config), requests)
    plenty = make(Limits(64, MOST_SEQUENCES, 64, limits.window))
    for one in requests:
        plenty.reset()
        what = f"seed {seed}: {one} of {limits}, {config}"
        compare(
            answers[one.name],
            alone(plenty, one),
            reported=one.config["logprobs"],
            what=what,
        )


def fake_runner(limits: Limits) -> Runner:
    return FakeRunner(
        num_pages=limits.num_pages,
        page_size=16,
        max_num_sequence=limits.max_num_sequence,
        max_batch_tokens=limits.max_batch_tokens,
        window=limits.window,
    )


@pytest.fixture(scope="module")
def tiny_runner(tmp_path_factory: pytest.TempPathFactory) -> MakeRunner:
    models = TinyModels(tmp_path_factory.mktemp("tiny"))
    weights = models.weights("plain", "portable")

    def make(limits: Limits) -> Runner:
        return ModelRunner(
            models.library("plain", "portable", windowed=limits.window is not None),
            weights,
            num_pages=limits.num_pages,
            max_num_sequence=limits.max_num_sequence,
            max_batch_tokens=limits.max_batch_tokens,
            context_window=512,
            window=limits.window,
        )

    return make


@pytest.mark.parametrize("seed", range(60))
def test_mixed_is_alone_on_the_fake_runner(seed: int) -> None:
    run_case(seed, fake_runner, page_size=16, count=16)


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_mixed_is_alone_in_compiled_code(seed: int, tiny_runner: MakeRunner) -> None:
    run_case(seed, tiny_runner, page_size=16, count=12)
