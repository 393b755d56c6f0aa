"""How near our logits are to the float32 oracle's, on the same weights.

    python benchmarks/accuracy.py [--model FILE.gguf] [--kernels vnni|avx2|portable] [--chunk N]

Run `oracle.py` once before (it needs torch; this does not). Prints, over 20 prompts with 64 forced
positions each: top-1 agreement, KL(oracle || ours), the greatest difference of a logit; whether
the greedy answers of `greedy.json` come out to the last id; and the perplexity of a public-domain
text against float32's. `--chunk 1` sends every position through the decode path. The exit code is
1 if a figure to reach is missed.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from agreement import Agreement, OracleAnswers, common_prefix, compare_forced, perplexity_ratio
from common import digest, model_path, oracle_folder, print_configuration, read_json
from ours import add_engine_options, greedy, open_runner, versions


def report_forced(runner: Any, oracle: OracleAnswers, chunk: int | None) -> Agreement:
    """Print the agreement of each prompt, of each kind and of all; the last is returned."""
    parts = compare_forced(runner, oracle, chunk)
    for case, part in zip(oracle.cases, parts, strict=True):
        print(f"  {case['kind']} {case['name'][:24]:24s} {part}")
    for kind in ("chat", "text"):
        chosen = [p for c, p in zip(oracle.cases, parts, strict=True) if c["kind"] == kind]
        print(f"{kind:31s} {Agreement.joined(chosen)}")
    total = Agreement.joined(parts)
    print(f"{f'all {len(total.kl)} positions':31s} {total}")
    return total


def report_greedy(runner: Any, model: Path) -> bool:
    """Print how far each known greedy answer comes out; whether all do (or none is known)."""
    known = read_json("greedy.json")
    if digest(model) != known["model_sha256"]:
        print("greedy text: no known answers for this file")
        return True
    equal = []
    for case in known["cases"]:
        answer = greedy(runner, case["prompt_ids"], len(case["answer_ids"]))
        same = common_prefix(answer, case["answer_ids"])
        print(f"greedy text: {same} of {len(answer)} ids equal: {case['prompt']}")
        equal.append(answer == case["answer_ids"])
    return all(equal)


def report_perplexity(runner: Any, oracle: OracleAnswers, chunk: int | None) -> float:
    """Print the perplexity against the oracle's; the ratio is returned."""
    ratio = perplexity_ratio(runner, oracle, chunk)
    mean = oracle.text_logprobs.mean()
    print(f"perplexity: ours / float32's = {ratio:.6f}", end=" ")
    print(f"(float32's is {np.exp(-mean):.4f} over {len(oracle.text_logprobs)} tokens)")
    return ratio


def missed(total: Agreement, greedy_equal: bool, ratio: float, kernels: str | None) -> list[str]:
    """The figures to reach that were not. Portable kernels compute in float32 and owe more."""
    reached = {
        "top-1 of at least 99 %": total.same_top.mean() >= 0.99,
        "mean KL of at most 5e-4": total.kl.mean() <= 5e-4,
        "greedy text equal": greedy_equal,
        "perplexity within 0.1 %": abs(ratio - 1) <= 1e-3,
        "max |dlogit| of at most 2e-3": kernels != "portable" or total.delta.max() <= 2e-3,
    }
    return [name for name, good in reached.items() if not good]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    add_engine_options(parser)
    parser.add_argument("--chunk", type=int, help="tokens a step (the runner's own if not given)")
    parser.add_argument("--oracle", help="folder of the oracle's answers (found if not given)")
    arguments = parser.parse_args()
    model, kernels, chunk = model_path(arguments.model), arguments.kernels, arguments.chunk
    oracle = OracleAnswers.read(oracle_folder(model, arguments.oracle))
    runner = open_runner(model, kernels, arguments.threads)
    options = {"kernels": runner.metadata.isa, "chunk": chunk or runner.limits.max_batch_tokens}
    print_configuration("accuracy against float32", model=model.name, **options, **versions())
    total = report_forced(runner, oracle, chunk)
    equal = report_greedy(runner, model)
    ratio = report_perplexity(runner, oracle, chunk)
    if misses := missed(total, equal, ratio, kernels):
        raise SystemExit(f"missed: {', '.join(misses)}")
    print("every figure reached")


if __name__ == "__main__":
    main()
