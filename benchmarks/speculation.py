"""Compares speculative decoding with plain decoding: the same requests, in turns.

    python benchmarks/speculation.py [--rounds N] [--streams N] [--length N]
                                     [--draft FILE.gguf | --heads FOLDER | --eagle FOLDER]
                                     [--always] [--only NAME] [--precision fast]

* `loop`: the model continues a text that repeats itself (draft tokens are mostly right)
* `repeat`: in a chat, the user asks for a text word for word
* `code`: the model writes a function again with one name changed
* `prose`: the model continues a free text (draft tokens are mostly wrong; it should lose nothing)

* `chat 0` to `chat 9`, with `--heads`, `--eagle` or `--only chat`: questions of `prompts.json`,
  from which no heads have learnt
* `unseen 0` to `unseen 9`, with `--eagle` or `--only unseen`: questions of kinds that EAGLE heads
  learn from, about what they have not learnt from (`user_questions.py`)

Each runs greedily and at temperature 0.8. The ratio is that of the tokens a second in one round.
Both cores share one runner, and their answers are compared token by token. With `--draft`, a second
model drafts. (The model's own file as a draft model is always right and never faster.) With
`--heads`, Medusa heads draft: `train_heads.py` trains some. With `--eagle`, an EAGLE head drafts
(`train_eagle.py`); it has a runner of its own, which computes the head in plain steps too.
`--always` drafts in each step, whether that pays or not: to see how many tokens are accepted.
Tokens a step are those that a step adds to a stream behind its first token, the model's own one
included.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from common import HERE, Spread, model_path, print_configuration, read_json
from ours import add_engine_options, add_precision_option, open_runner, versions
from user_questions import unseen

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.compute_thread import computing_here
from mlc_llm.runtime.medusa_runner import MedusaRunner
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.engine_core import EngineCore
from mlc_llm.serve.core.speculation.draft_model import DraftModel
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.eagle import EagleDrafter
from mlc_llm.serve.core.speculation.medusa import MedusaDrafter
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.opening.bundle import ModelInfo, open_model, open_models
from mlc_llm.serve.opening.runner import create_runner
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
    steps: int
    """Behind the first token of every stream."""

    @property
    def speed(self) -> float:
        return sum(map(len, self.tokens.values())) / self.seconds

    @property
    def per_step(self) -> float:
        """Tokens that a step adds to a stream; exact for a single one."""
        behind_first = sum(len(one) - 1 for one in self.tokens.values())
        return behind_first / max(self.steps, 1) / len(self.tokens)


def run(core: EngineCore, case: Case, streams: int, length: int) -> Run:
    """Run all streams. The time begins when every stream has a token."""
    tokens: dict[str, list[int]] = {}
    for i in range(streams):
        tokens[str(i)] = []
        config = case.config(seed=i, length=length)
        core.add_request(Request(str(i), [TokenData(case.prompt)], config))
    start, steps = None, 0
    while not core.is_idle:
        if start is None and all(tokens.values()):
            start = time.perf_counter()
        steps += start is not None
        for output in core.step():
            for i, sequence in enumerate(output.unpack()[1]):
                assert i == 0 and sequence.error is None
                tokens[output.request_id] += sequence.delta_token_ids
    assert start is not None, "a stream ended before the others began"
    return Run(tokens, time.perf_counter() - start, steps)


def acceptance(core: EngineCore) -> str:
    """How many draft tokens were accepted since the last reset."""
    spec = core.metrics().metrics.get("spec_decode", {"draft_count": []})
    drafted = sum(spec["draft_count"])
    if not drafted:
        return "no draft tokens"
    accepted = sum(spec["accept_count"])
    return f"{drafted} draft tokens, {100 * accepted / drafted:.0f} % accepted"


def measure(
    cores: tuple[EngineCore, EngineCore], case: Case, options: argparse.Namespace
) -> tuple[str, float, float]:
    """Run both cores in each round, each first in turn. The first round warms up. Returns a line,
    the median of the ratios and the tokens of a step."""
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
    ratio, per_step = Spread.of(ratios[1:]), found[drafting].per_step
    line = (
        f"{case.name:8} {case.temperature:3}  {ratio!s:24} "
        f"{Spread.of(speeds[1:])!s:28} {count:5} tokens, {per_step:.2f} a step, "
        f"{acceptance(drafting)}"
    )
    return line, ratio.median, per_step


class Always:
    """Drafts as much as is offered, whether it pays or not."""

    patience = 0

    def choose(
        self, offers: Sequence[tuple[int, float]], cost: Callable[[int, int], float]
    ) -> list[int]:
        return [offered for offered, _ in offers]

    def learn(self, rows: int, drafted: int, seconds: float) -> None:
        """Learns nothing."""

    def found_nothing(self) -> None:
        """Looks again in the next step."""

    def failed(self) -> None:
        raise AssertionError("drafting failed")


def runner_with_head(folder: str, model: Path, config: EngineConfig) -> ModelRunner:
    """A runner of the model with an EAGLE head."""
    models = [ModelInfo(str(model)), ModelInfo(folder)]
    runner = create_runner(open_models(models, drafter="eagle")[0], config)
    assert isinstance(runner, ModelRunner)
    return runner


def drafter_of(options: argparse.Namespace, model: Path) -> Drafter:
    """Who drafts; prompt lookup if nothing else is asked for."""
    if options.draft:
        path = Path(options.draft)
        return DraftModel(open_runner(path, options.kernels, options.threads, CONFIG))
    if not options.heads:
        return PromptLookup()
    models = [ModelInfo(str(model)), ModelInfo(options.heads)]
    heads = create_runner(open_models(models, drafter="medusa")[1], CONFIG)
    assert isinstance(heads, MedusaRunner)
    return MedusaDrafter(heads)


def prompts_of(options: argparse.Namespace) -> dict[str, str]:
    """By name of the case."""
    prose = (HERE / "public_domain.txt").read_text(encoding="utf-8")[:1200]
    found = {
        "loop": TEXT * 4,
        "repeat": chat(f"Repeat this text word for word: {TEXT * 2}"),
        "code": chat(f"Write this code again, with `total` renamed to `sum`:\n\n{CODE}"),
        "prose": prose,
    }
    if options.heads or options.eagle or options.only:
        found |= {f"chat {i}": chat(one) for i, one in enumerate(read_json("prompts.json")["chat"])}
    if options.eagle or options.only:
        found |= {f"unseen {i}": chat(one) for i, one in enumerate(unseen(10))}
    return {name: one for name, one in found.items() if name.startswith(options.only)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_engine_options(parser)
    add_precision_option(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=1)
    parser.add_argument("--length", type=int, default=200, help="tokens of an answer, at most")
    parser.add_argument("--draft", help="GGUF file of a draft model")
    parser.add_argument("--heads", help="folder of Medusa heads")
    parser.add_argument("--eagle", help="folder of an EAGLE head")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.0, 0.8])
    parser.add_argument("--only", default="", help="cases whose names begin so")
    parser.add_argument("--always", action="store_true", help="draft whether it pays or not")
    options = parser.parse_args()
    model = model_path(options.model)
    config = plain = replace(CONFIG, precision=options.precision)
    runner = open_runner(model, options.kernels, options.threads, plain)
    tokenizer = open_model(str(model)).tokenizer
    if options.heads:  # else no vector is asked of the model
        config = replace(plain, speculative_mode="medusa", additional_models=[options.heads])
    if options.eagle:
        drafting = runner_with_head(options.eagle, model, plain)
        drafter: Drafter = EagleDrafter(drafting)
    else:
        drafting, drafter = runner, drafter_of(options, model)
    cores = (
        EngineCore(runner, tokenizer, plain),
        EngineCore(drafting, tokenizer, config, drafter=drafter),
    )
    if options.always:
        assert cores[1]._steps.speculator is not None
        cores[1]._steps.speculator.lengths = Always()
    print_configuration(
        "speculative decoding",
        model=model.name,
        kernels=runner.metadata.backend,
        drafter=options.draft or options.heads or options.eagle or "prompt lookup",
        always=options.always,
        precision=options.precision,
        streams=options.streams,
        rounds=options.rounds,
        **versions(),
    )
    print("case      temp ratio to plain           tokens a second")
    groups: dict[tuple[str, float], list[tuple[float, float]]] = {}
    for name, prompt in prompts_of(options).items():
        for temperature in options.temperatures:
            case = Case(name, tokenizer.encode(prompt, special=True), temperature)
            line, *figures = measure(cores, case, options)
            print(line, flush=True)
            groups.setdefault((name.split()[0], temperature), []).append((figures[0], figures[1]))
    for (name, temperature), found in groups.items():
        if len(found) > 1:
            ratios, tokens = (Spread.of(one) for one in zip(*found, strict=True))
            print(f"{name} {temperature}, {len(found)} prompts: ratio {ratios}, a step {tokens}")


if __name__ == "__main__":
    with computing_here():  # as the threads of engines and the command line do
        main()
