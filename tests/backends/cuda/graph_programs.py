"""What tests of CUDA graphs run in processes where the stand-in is CUDA."""

from __future__ import annotations

import gc
import json
import logging
import sys
from array import array
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fake_cuda import Fake
from model_programs import TOKENS, runner_of

from mlc_llm.runtime.batch import KNOWN, Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.decode_rows import DecodeRows, SameRows
from mlc_llm.runtime.model_runner import ModelRunner

ROWS = 3
GREEDY = Sampling(temperature=0.0)


def samplings(kind: str, step: int) -> list[Sampling]:
    """Of three rows. Plain ones are repeated with the model, of others the model alone is."""
    if kind == "greedy":
        return [GREEDY] * ROWS
    drawn = [Sampling(temperature=0.9, uniform=(7 * step + i) % 10 / 10) for i in range(ROWS)]
    if kind == "edited" or (kind == "mixed" and step % 2):
        drawn[0].top_logprobs, drawn[1].logit_bias, drawn[2].wants_hidden = 4, {5: 9.0}, True
    return drawn


def decode(runner: ModelRunner, kind: str, steps: int, start: int = 0) -> list[list[Sampled]]:
    """Steps that only decode, of sequences that begin with 5, 1 and 17 tokens."""
    lengths, found = (5, 1, 17), []
    for seq_id, length in enumerate(lengths if start == 0 else ()):
        runner.add_sequence(seq_id)
        runner.run(Batch([BatchRow(seq_id, TOKENS[seq_id : seq_id + length], ())]))
    for step in range(start, start + steps):
        rows = [
            BatchRow(i, [TOKENS[(step * ROWS + i) % len(TOKENS)]], [sampling])
            for i, sampling in enumerate(samplings(kind, step))
        ]
        found.append([one for (one,) in runner.run(Batch(rows)).samples])
    return found


def without_graphs(library: str, weights: str) -> ModelRunner:
    runner = runner_of(library, weights)
    runner._repeated = None
    return runner


def repeat(library: str, weights: str) -> None:
    """Repeated steps give the same bits as others. Prints the calls of a repeated step, those in
    its capture, and what is alive at the end."""
    fake, calls = Fake(), {}
    for kind in ("greedy", "drawn", "edited"):
        plain = decode(without_graphs(library, weights), kind, 4)
        runner = runner_of(library, weights)
        assert decode(runner, kind, 1) == plain[:1]
        fake.log()
        assert decode(runner, kind, 1, 1) == plain[1:2]
        captured = fake.log()
        assert decode(runner, kind, 1, 2) == plain[2:3]
        calls[kind] = [captured, fake.log()]
        assert decode(runner, kind, 1, 3) == plain[3:4]
        del runner
        gc.collect()
    print(json.dumps([calls, fake.alive()]))


def mixed(library: str, weights: str) -> None:
    """Steps of which something else is asked come between plain ones, whose graphs stay. Prints the
    graphs that each of eight steps has made and launched."""
    fake, plain = Fake(), decode(without_graphs(library, weights), "mixed", 8)
    runner, counts = runner_of(library, weights), []
    for step in range(8):
        fake.log()
        assert decode(runner, "mixed", 1, step) == plain[step : step + 1]
        log = fake.log()
        counts.append([sum(n in line for line in log) for n in ("GraphInstantiate", "GraphLaunch")])
    print(json.dumps(counts))


def drop_and_grow(library: str, weights: str) -> None:
    """Steps of many sizes beside prompts, where there is memory for one graph alone, and while
    sequences need more and more page ids. Prints how many graphs were made, and there are."""
    fake = Fake()
    runner, plain = runner_of(library, weights), without_graphs(library, weights)
    runner._step.repeats._most_bytes = 1
    made, texts = 0, []
    for one in (runner, plain):
        found = []
        for seq_id in range(4):
            one.add_sequence(seq_id)
            one.run(Batch([BatchRow(seq_id, TOKENS[: 1 + 20 * seq_id], ())]))
        fake.log()
        for step in range(24):
            ids = range(1 + step // 3 % 4)
            rows = [BatchRow(i, [TOKENS[step + i]], [GREEDY]) for i in ids]
            found.append(one.run(Batch(rows)).samples)
        made = made or sum("cudaGraphInstantiate" in line for line in fake.log())
        texts.append(found)
    assert texts[0] == texts[1]
    print(json.dumps([made, runner._step.repeats.count]))


@contextmanager
def logged() -> Any:
    """The warnings of the graphs."""
    words: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: words.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("mlc_llm.backends.cuda.graphs")
    log.addHandler(handler)
    log.propagate = False
    try:
        yield words
    finally:
        log.removeHandler(handler)


def refused(library: str, weights: str) -> None:
    """Each call while a step is captured fails once: the step is computed nevertheless, and one
    line says why there is no graph. Prints the functions and these lines."""
    fake, plain = Fake(), decode(without_graphs(library, weights), "greedy", 4)
    first = runner_of(library, weights)
    decode(first, "greedy", 1)
    before = fake.calls()
    decode(first, "greedy", 1, 1)
    total, found = fake.calls() - before, []
    for number in range(1, total + 1, max(total // 12, 1)):
        found += _refused_once(runner_of(library, weights), fake, number, plain)
    print(json.dumps(found))


def _refused_once(
    runner: ModelRunner, fake: Fake, number: int, plain: list[list[Sampled]]
) -> Sequence[tuple[str, list[str]]]:
    assert decode(runner, "greedy", 1) == plain[:1]
    with logged() as words, fake.failing(number, 700):
        try:
            found = decode(runner, "greedy", 1, 1)
        except Exception:  # before or behind the capture: the core would try again
            return ()
        failed = fake.failed()
    assert found == plain[1:2], failed
    assert decode(runner, "greedy", 2, 2) == plain[2:], failed
    return [(failed, words)]


def allocate_in_capture(library: str, weights: str) -> None:
    """A step that allocates in capture gets no graph, and is computed. Prints the warning."""
    plain = decode(without_graphs(library, weights), "greedy", 3)
    runner = runner_of(library, weights)
    forward = runner._step.forward

    def allocating(*inputs: object) -> object:
        runner._library.device.zeros((3,), "float32")
        return forward(*inputs)

    runner._step.forward = allocating  # type: ignore[assignment]
    with logged() as words:
        assert decode(runner, "greedy", 3) == plain
    print(json.dumps(words))


def overlap(library: str, weights: str) -> None:
    """Steps that are started while the one before computes read its tokens on the GPU, also where
    rows leave, and where something else is asked of them. Prints the calls of a repeated step, and
    what is alive at the end."""
    fake, calls = Fake(), []
    for kind in ("greedy", "drawn", "edited"):
        plain = chained(without_graphs(library, weights), kind, waits=True)
        runner = runner_of(library, weights)
        assert runner.limits.overlaps
        assert chained(runner, kind, waits=False, log=calls) == plain
        runner.check_integrity()
        runner.reset()
        runner.check_integrity()
        if kind != "edited":
            assert chained(runner, kind, waits=False, by_column=True) == plain
        del runner
        gc.collect()
    print(json.dumps([calls, fake.alive()]))


def columns(rows: Sequence[BatchRow]) -> DecodeRows:
    """The same rows."""
    chosen_by = array("i", [row.chosen_by for row in rows])
    choices = [row.samplings[0] for row in rows]
    same = SameRows([row.seq_id for row in rows], choices, [row.adapter for row in rows])
    uniforms = np.array([one.uniform for one in choices])
    if chosen_by[0] == KNOWN:
        return DecodeRows(same, uniforms, tokens=[row.token_ids[0] for row in rows])
    is_all = chosen_by == same.indices
    return DecodeRows(same, uniforms, chosen_by=same.indices if is_all else chosen_by)


def chained(
    runner: ModelRunner,
    kind: str,
    *,
    waits: bool,
    by_column: bool = False,
    log: list[str] | None = None,
) -> list[list[Sampled]]:
    """Six steps, each behind the tokens of the one before. Row 0 leaves after the fourth one."""
    found, before, step_before = [], None, None
    for seq_id, length in enumerate((5, 1, 17)):
        runner.add_sequence(seq_id)
        runner.run(Batch([BatchRow(seq_id, TOKENS[seq_id : seq_id + length], ())]))
    ids = [0, 1, 2]
    for step in range(6):
        last, ids = ids, ids if step < 4 else [1, 2]
        choices = samplings(kind, step)
        if waits:
            tokens = {i: TOKENS[i] for i in ids} if before is None else before
            rows = [BatchRow(i, [tokens[i]], [choices[i]]) for i in ids]
            samples = [one for (one,) in runner.run(Batch(rows)).samples]
            before = {i: one.token_id for i, one in zip(ids, samples, strict=True)}
            found.append(samples)
            continue
        rows = [
            BatchRow(i, [TOKENS[i]], [choices[i]])
            if step_before is None
            else BatchRow(i, (0,), [choices[i]], chosen_by=last.index(i))
            for i in ids
        ]
        Fake().log()
        started = runner.submit(Batch(columns(rows) if by_column else rows), step_before)
        if log is not None and kind == "greedy" and step == 3:
            log += Fake().log()
        if step_before is not None:
            found.append([one for (one,) in runner.collect(step_before).samples])
        step_before = started
    if step_before is not None:
        found.append([one for (one,) in runner.collect(step_before).samples])
    return found


def check_script(folder: str) -> None:
    """`benchmarks/gpu_check.py`, with less to compute. Prints what it prints, and its exit code."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))
    import gpu_check

    gpu_check.SEQUENCES, gpu_check.COUNTS, gpu_check.STEPS = 3, (1, 3), 4
    sys.argv = ["gpu_check.py", folder]
    print(gpu_check.main())
