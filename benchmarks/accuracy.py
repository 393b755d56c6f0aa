"""How near our logits are to the float32 oracle's, on the same weights.

    python benchmarks/accuracy.py [--model FILE.gguf] [--kernels vnni|avx2|portable] [--chunk N]

Run `oracle.py` once before (it needs torch; this does not). Prints, over 20 prompts with 64 forced
positions each: top-1 agreement, KL(oracle || ours), the greatest difference of a logit; whether
the greedy answers of `greedy.json` come out to the last id; and the perplexity of a public-domain
text against float32's. `--chunk 1` sends every position through the decode path.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from agreement import Agreement, OracleAnswers, common_prefix, compare_forced, perplexity_ratio
from common import digest, model_path, oracle_folder, print_configuration, read_json
from ours import add_engine_options, greedy, open_runner, versions


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
