"""Compares speculative decoding with plain decoding: the same requests, in turns.

    python benchmarks/speculation.py [--rounds N] [--streams N] [--length N] [--draft FILE.gguf]

* `loop`: the model continues a text that repeats itself (draft tokens are mostly right)
* `repeat`: in a chat, the user asks for a text word for word
* `code`: the model writes a function again with one name changed
* `prose`: the model continues a free text (draft tokens are mostly wrong; it should lose nothing)

Each runs greedily and at temperature 0.8. The ratio is that of the tokens a second in one round.
Both cores share one runner, and their answers are compared token by token. With `--draft`, a second
model drafts. (The model's own file as a draft model is always right and never faster.)
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from common import HERE, Spread, model_path, print_configuration
from ours import add_engine_options, open_runner, versions

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.speculation.draft_model import DraftModel
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.request import Request

TEXT = (
    "The quick brown fox jumps over the lazy dog. A journey of a thousand miles begins with a "
    "single step. All that glitters is not gold; often have you heard that told. "
)
CODE = """def mean(values):
    total = 0.0
    for value in values:
        total += value
    return total / len(values)


def variance(values):
    middle = mean(values)
    total = 0.0
    for value in values:
        total += (value - middle) ** 2
    return total / len(values)
"""
CONFIG = EngineConfig(
    max_num_sequence=8,
    max_total_sequence_length=16384,
    max_single_sequence_length=2048,
    prefill_chunk_size=512,
    prefix_cache_mode="disable",
)


def chat(question: str) -> str:
    """In the template of the default model."""
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


@dataclass
class Case:
    """One kind of request."""

    name: str
    prompt: list[int]
    temperature: float

    def config(self, seed: int, length: int) -> GenerationConfig:
        return GenerationConfig(temperature=self.temperature, seed=seed, max_tokens=length)


@dataclass
class Run:
    """All streams of one case, from the first to the last token."""

    tokens: dict[str, list[int]]
    seconds: float

    @property
    def speed(self) -> float:
        return sum(map(len, self.tokens.values())) / self.seconds


def run(core: EngineCore, case: Case, streams: int, length: int) -> Run:
    """Run all streams. The time begins when every stream has a token."""
    tokens: dict[str, list[int]] = {}
    for i in range(streams):
        tokens[str(i)] = []
        config = case.config(seed=i, length=length)
        core.add_request(Request(str(i), [TokenData(case.prompt)], config))
    start = None
    while not core.is_idle:
        if start is None and all(tokens.values()):
            start = time.perf_counter()
        for output in core.step():
            for i, sequence in enumerate(output.unpack()[1]):
                assert i == 0 and sequence.error is None
                tokens[output.request_id] += sequence.delta_token_ids
    assert start is not None, "a stream ended before the others began"
    return Run(tokens, time.perf_counter() - start)


def acceptance(core: EngineCore) -> str:
    """How many draft tokens were accepted since the last reset."""
    spec = core.metrics().metrics.get("spec_decode", {"draft_count": []})
    drafted = sum(spec["draft_count"])
    if not drafted:
        return "no draft tokens"
    return f"{drafted} draft tokens, {100 * sum(spec['accept_count']) / drafted:.0f} % accepted"


def measure(
    cores: tuple[EngineCore, EngineCore], case: Case, options: argparse.Namespace
) -> Iterator[str]:
    """Run both cores in each round, each first in turn. The first round warms up."""
    plain, drafting = cores
    drafting.reset()
    speeds, ratios = [], []
    for i in range(options.rounds + 1):
        first, second = (plain, drafting) if i % 2 else (drafting, plain)
        found = {one: run(one, case, options.streams, options.length) for one in (first, second)}
        assert found[plain].tokens == found[drafting].tokens, "the answers differ"
        speeds.append(found[drafting].speed)
        ratios.append(found[drafting].speed / found[plain].speed)
    count = sum(map(len, found[plain].tokens.values()))
    yield (
        f"{case.name:7} {case.temperature:3}  {Spread.of(ratios[1:])!s:24} "
        f"{Spread.of(speeds[1:])!s:28} {count:5} tokens, {acceptance(drafting)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_options(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--length", type=int, default=200, help="tokens of an answer, at most")
    parser.add_argument("--draft", help="GGUF file of a draft model")
    options = parser.parse_args()
    model = model_path(options.model)
    runner = open_runner(model, options.kernels, options.threads, CONFIG)
    drafter: Drafter = PromptLookup()
    if options.draft:
        drafter = DraftModel(
            open_runner(Path(options.draft), options.kernels, options.threads, CONFIG)
        )
    tokenizer = open_model(str(model)).tokenizer
    cores = (
        EngineCore(runner, tokenizer, CONFIG),
        EngineCore(runner, tokenizer, CONFIG, drafter=drafter),
    )
    prose = (HERE / "public_domain.txt").read_text(encoding="utf-8")[:1200]
    prompts = {
        "loop": TEXT * 4,
        "repeat": chat(f"Repeat this text word for word: {TEXT * 2}"),
        "code": chat(f"Write this code again, with `total` renamed to `sum`:\n\n{CODE}"),
        "prose": prose,
    }
    print_configuration(
        "speculative decoding",
        model=model.name,
        kernels=runner.metadata.backend,
        drafter=options.draft or "prompt lookup",
        streams=options.streams,
        rounds=options.rounds,
        **versions(),
    )
    print("case     temp ratio to plain           tokens a second")
    for name, prompt in prompts.items():
        for temperature in (0.0, 0.8):
            case = Case(name, tokenizer.encode(prompt, special=True), temperature)
            for line in measure(cores, case, options):
                print(line, flush=True)


if __name__ == "__main__":
    main()
