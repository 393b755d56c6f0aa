"""Whether a GPU computes what it has to, with what `gpu_carry.py` has made. No compiler is needed.

    python benchmarks/gpu_check.py FOLDER [--soak SECONDS]
    compute-sanitizer --tool memcheck python benchmarks/gpu_check.py FOLDER     # and racecheck

Logits of a small model stand beside those of the reference on the CPU; a row has the same bits
alone and beside others, launched kernel by kernel, repeated as a CUDA graph, and started while the
step before it computes. `--soak` goes on with random batches for so long. The exit code is 1 if
something differs.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlc_llm.errors import MLCError
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

CHUNKED = 90
"""Tokens whose logits are compared."""
VOCAB = 300
WORST = 3e-3
"""Largest difference of a logit, as a part of the largest one: keys and values are float16."""
SEQUENCES, STEPS = 16, 12
COUNTS = (1, 2, 3, 8, SEQUENCES)
"""Rows of a step."""


def tokens_of(count: int, seed: int = 0) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, VOCAB, count).tolist()
    return found


def opened(folder: Path) -> ModelRunner:
    return ModelRunner(
        folder / "cuda" / "library", folder / "cuda" / "weights",
        num_pages=512, max_num_sequence=SEQUENCES, max_batch_tokens=64, context_window=512,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", help="what gpu_carry.py has made")
    parser.add_argument("--soak", type=float, default=0, metavar="SECONDS")
    args = parser.parse_args()
    folder = Path(args.folder) / "checks" / "tiny"
    try:
        runner = opened(folder)
        faults = [*logit_faults(runner, np.load(folder / "logits.npy")), *row_faults(runner)]
        if args.soak:
            faults += soak_faults(runner, args.soak)
        runner.check_integrity()
    except (MLCError, MemoryError) as error:
        faults = [f"{type(error).__name__}: {error}"]
    print(*(faults or ["all is right"]), sep="\n")
    return 1 if faults else 0


def logit_faults(runner: ModelRunner, exact: np.ndarray) -> list[str]:
    """Beside the reference, and in steps of several sizes."""
    found = [runner.logits(tokens_of(CHUNKED), chunk=chunk) for chunk in (64, 7, 1)]
    error = float(np.abs(found[0] - exact).max() / np.abs(exact).max())
    print(f"largest difference of a logit: {error:.1e} of the largest one (at most {WORST:.0e})")
    faults = [] if error <= WORST else ["the logits are not those of the reference"]
    same = all(one.tobytes() == found[0].tobytes() for one in found)
    return faults if same else [*faults, "the bits of a logit depend on the size of the step"]


def row_faults(runner: ModelRunner) -> list[str]:
    """Texts of several rows, each computed alone, together, and early."""
    prompts = [tokens_of(3 + 5 * i, i) for i in range(SEQUENCES)]
    alone = [texts(runner, [prompt], early=False)[0] for prompt in prompts]
    faults = []
    for count in COUNTS:
        for early in (False, True):
            if texts(runner, prompts[:count], early=early) != alone[:count]:
                faults.append(f"{count} rows{' started early' * early} differ from rows alone")
    print(f"rows alone, together and started early: {'differ' if faults else 'the same bits'}")
    return faults


def texts(
    runner: ModelRunner, prompts: Sequence[Sequence[int]], *, early: bool, count: int | None = None
) -> list[list[int]]:
    """The tokens behind each prompt, drawn with log-probabilities in every third step."""
    for seq_id, prompt in enumerate(prompts):
        runner.add_sequence(seq_id)
        if len(prompt) > 1:
            runner.run(Batch([BatchRow(seq_id, prompt[:-1], ())]))
    found: list[list[int]] = [[] for _ in prompts]
    before = None
    for step in range(count or STEPS):
        asked = 3 if step % 3 == 2 else -1
        choices = [
            Sampling(
                temperature=prompt[0] % 2,
                uniform=(7 * step + prompt[0]) % 10 / 10,
                top_logprobs=asked,
            )
            for prompt in prompts
        ]
        if early and before is not None:
            rows = [BatchRow(i, (0,), [one], chosen_by=i) for i, one in enumerate(choices)]
        else:
            last = [(text or prompt)[-1] for text, prompt in zip(found, prompts, strict=True)]
            rows = [BatchRow(i, [last[i]], [one]) for i, one in enumerate(choices)]
        started = runner.submit(Batch(rows), before if early else None)
        if early and before is not None:
            _take(runner.collect(before).samples, found)
        before = started
        if not early:
            _take(runner.collect(started).samples, found)
    if early and before is not None:
        _take(runner.collect(before).samples, found)
    for seq_id in range(len(prompts)):
        runner.remove_sequence(seq_id)
    return found


def _take(samples: Sequence[Sequence[Sampled]], found: list[list[int]]) -> None:
    for (one,), text in zip(samples, found, strict=True):
        assert one.error is None, one.error
        text.append(one.token_id)


def soak_faults(runner: ModelRunner, seconds: float) -> list[str]:
    """Random prompts in random company."""
    chance, end, rounds = random.Random(0), time.monotonic() + seconds, 0
    while time.monotonic() < end:
        prompts = [
            tokens_of(chance.randint(1, 120), chance.randrange(1 << 20))
            for _ in range(chance.randint(1, SEQUENCES))
        ]
        early, count = chance.random() < 0.7, chance.randint(1, 40)
        one = chance.randrange(len(prompts))
        together = texts(runner, prompts, early=early, count=count)
        again = texts(runner, prompts, early=not early, count=count)
        if together != again:
            return [f"round {rounds}: steps that are started early give other tokens ({one})"]
        rounds += 1
    print(f"{rounds} rounds of random batches: the same tokens")
    return []


if __name__ == "__main__":
    sys.exit(main())
