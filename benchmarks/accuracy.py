"""How near our logits are to the float32 oracle's, on the same weights.

    python benchmarks/accuracy.py [--model FILE.gguf] [--kernels vnni|avx2|portable] [--chunk N]

Run `oracle.py` once before (it needs torch; this does not). Prints, over 20 prompts with 64 forced
positions each: top-1 agreement, KL(oracle || ours), the greatest difference of a logit; whether
the greedy answers of `greedy.json` come out to the last id; and the perplexity of a public-domain
text against float32's. `--chunk 1` sends every position through the decode path.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from common import (
    FORCED,
    digest,
    kl_divergence,
    model_path,
    oracle_folder,
    print_configuration,
    read_json,
    token_logprobs,
    windows,
)
from ours import add_engine_options, greedy, open_runner, versions


class Logits(Protocol):
    """The part of a model runner that the comparison needs."""

    def logits(self, token_ids: Sequence[int], *, chunk: int | None = None) -> np.ndarray:
        """Raw float32 logits [len, V] of one fresh sequence."""


@dataclass(frozen=True)
class Agreement:
    """Two sets of logits for the same positions, one entry a position."""

    same_top: np.ndarray
    kl: np.ndarray
    delta: np.ndarray

    @classmethod
    def of(cls, oracle: np.ndarray, ours: np.ndarray) -> Agreement:
        """Both [N, V]. `delta` is of raw logits: a constant added to a row counts."""
        return cls(
            oracle.argmax(axis=-1) == ours.argmax(axis=-1),
            kl_divergence(oracle, ours),
            np.abs(oracle.astype(np.float64) - ours).max(axis=-1),
        )

    @classmethod
    def joined(cls, parts: Sequence[Agreement]) -> Agreement:
        fields = ("same_top", "kl", "delta")
        return cls(*(np.concatenate([getattr(part, f) for part in parts]) for f in fields))

    def __str__(self) -> str:
        return (
            f"top-1 {100 * self.same_top.mean():6.2f} %   KL mean {self.kl.mean():.2e}"
            f" max {self.kl.max():.2e}   max |dlogit| {self.delta.max():.2e}"
        )


@dataclass(frozen=True)
class OracleAnswers:
    """What `oracle.py` wrote for one file."""

    cases: list[dict[str, Any]]
    logits: np.ndarray
    """[cases * 64, V], mapped from the file."""
    text_ids: list[int]
    text_logprobs: np.ndarray

    @classmethod
    def read(cls, folder: Path) -> OracleAnswers:
        """Raise SystemExit that says what to run if they are not there."""
        try:
            answers = json.loads((folder / "oracle.json").read_text(encoding="utf-8"))
            logits = np.load(folder / "logits.npy", mmap_mode="r")
        except FileNotFoundError as error:
            raise SystemExit(
                f"{error.filename} is missing: run benchmarks/oracle.py first"
            ) from None
        text = answers["perplexity"]
        return cls(answers["cases"], logits, text["ids"], np.array(text["logprobs"]))

    def forced(self, index: int) -> np.ndarray:
        """Logits [64, V] of one case."""
        return np.asarray(self.logits[index * FORCED : (index + 1) * FORCED])


def compare_forced(runner: Logits, oracle: OracleAnswers, chunk: int | None) -> list[Agreement]:
    """One agreement a case."""
    result = []
    for index, case in enumerate(oracle.cases):
        ours = runner.logits(case["ids"][:-1], chunk=chunk)[case["start"] - 1 :]
        result.append(Agreement.of(oracle.forced(index), ours))
    return result


def perplexity_ratio(runner: Logits, oracle: OracleAnswers, chunk: int | None) -> float:
    """Our perplexity on the text divided by the oracle's."""
    pieces = windows(oracle.text_ids)
    ours = [token_logprobs(runner.logits(p[:-1], chunk=chunk), p[1:]) for p in pieces]
    return float(np.exp(oracle.text_logprobs.mean() - np.concatenate(ours).mean()))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many ids are equal before the first that differs."""
    pairs = zip(left, right, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))


def report_greedy(runner: Any, model: Path) -> None:
    """Print how far each known greedy answer comes out; nothing for another model."""
    known = read_json("greedy.json")
    if digest(model) != known["model_sha256"]:
        print("greedy text: no known answers for this file")
        return
    for case in known["cases"]:
        answer = greedy(runner, case["prompt_ids"], len(case["answer_ids"]))
        same = common_prefix(answer, case["answer_ids"])
        print(f"greedy text: {same} of {len(case['answer_ids'])} ids equal: {case['prompt']}")


def report(runner: Any, oracle: OracleAnswers, model: Path, chunk: int | None) -> None:
    """Print everything."""
    parts = compare_forced(runner, oracle, chunk)
    for case, part in zip(oracle.cases, parts, strict=True):
        print(f"  {case['kind']} {case['name'][:24]:24s} {part}")
    for kind in ("chat", "text"):
        chosen = [p for c, p in zip(oracle.cases, parts, strict=True) if c["kind"] == kind]
        print(f"{kind:29s}   {Agreement.joined(chosen)}")
    total = Agreement.joined(parts)
    print(f"{'all ' + str(len(total.kl)) + ' positions':29s}   {total}")
    report_greedy(runner, model)
    ratio = perplexity_ratio(runner, oracle, chunk)
    predicted = len(oracle.text_logprobs)
    print(f"perplexity: ours / float32's = {ratio:.6f} over {predicted} tokens", end=" ")
    print(f"(float32's is {np.exp(-oracle.text_logprobs.mean()):.4f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--chunk", type=int, help="tokens a step (the runner's own if not given)")
    parser.add_argument("--oracle", help="folder of the oracle's answers (found if not given)")
    arguments = parser.parse_args()
    model = model_path(arguments.model)
    oracle = OracleAnswers.read(oracle_folder(model, arguments.oracle))
    runner = open_runner(model, arguments.kernels, arguments.threads)
    options = {"kernels": arguments.kernels or "default", "chunk": arguments.chunk or "default"}
    print_configuration("accuracy against float32", model=model.name, **options, **versions())
    report(runner, oracle, model, arguments.chunk)


if __name__ == "__main__":
    main()
