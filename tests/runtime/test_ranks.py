"""A model that two processes compute, beside the same model in one."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from rank_tools import ranks_of_plan, share_of
from tiny_models import TinyModels

from mlc_llm.errors import EngineDead, InvalidField, TransferRefused
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.packed_file import BrokenParams
from mlc_llm.runtime.ranks import group as group_file
from mlc_llm.runtime.ranks.group import RankGroup
from mlc_llm.runtime.step_inputs import StepNumbers

TOKENS = np.random.default_rng(3).integers(0, 300, 90).tolist()
GREEDY = Sampling(temperature=0, top_logprobs=3)
WORST = {"reference": 2e-5, "portable": 2e-5, "vnni": 2e-3}
"""Largest difference of a logit of 10. 1e-5, 8e-6 and 6e-4 were seen: integer kernels round
activations to 16 bits, in other groups of columns."""


@contextmanager
def both(
    models: TinyModels, folder: Path, name: str, kernels: str, window: Window | None = None
) -> Iterator[tuple[ModelRunner, ModelRunner, RankGroup]]:
    file, plan = models._planned(name)
    with ranks_of_plan(plan, file.tensors, folder, kernels, window=window) as (two, group):
        yield models.runner(name, kernels, window=window), two, group


def close(one: list[Sampled], two: list[Sampled], worst: float) -> bool:
    return [s.token_id for s in one] == [s.token_id for s in two] and all(
        abs(a[1] - b[1]) < worst
        for s, t in zip(one, two, strict=True)
        for a, b in zip(s.top, t.top, strict=True)
    )


def shared_files() -> int:
    """Memory of ranks that this process has open."""
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sum("mlc-ranks" in os.readlink(path) for path in links if path.exists())


def run(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[Sampled]:
    batch = Batch([BatchRow(seq_id, ids, [GREEDY]) for seq_id, ids in rows])
    found = [sample for (sample,) in runner.run(batch).samples]
    runner.check_integrity()
    return found


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("plain", "portable"), ("keys-and-values-apart", "reference"), ("mixed-kinds", "vnni")],
)
def test_batches_forks_and_rollbacks(
    tiny_models: TinyModels, tmp_path: Path, name: str, kernels: str
) -> None:
    """Whatever the core does with sequences, both give the same."""
    worst = WORST[kernels]
    with both(tiny_models, tmp_path, name, kernels) as (one, two, _):
        for chunk in (1, 7, None):
            difference = one.logits(TOKENS, chunk=chunk) - two.logits(TOKENS, chunk=chunk)
            assert np.abs(difference).max() < worst
        found = []
        for runner in (one, two):
            samples = []
            for seq_id in (0, 1):
                runner.add_sequence(seq_id)
            samples += run(runner, (0, TOKENS[:21]), (1, TOKENS[30:40]))
            runner.fork_sequence(0, 2, 19)  # in the middle of a page, which is copied
            runner.fork_sequence(1, 3, 10)
            samples += run(runner, (0, [1]), (2, [2, 3, 4]), (3, TOKENS[50:70]), (1, [5]))
            runner.rollback_sequence(2, 2)
            runner.remove_sequence(0)
            samples += run(runner, (2, [9]), (3, [8]))
            runner.reset()
            runner.add_sequence(7)
            samples += run(runner, (7, TOKENS[:40]))
            runner.reset()
            found.append(samples)
        assert close(*found, worst)


def test_with_a_sliding_window(tiny_models: TinyModels, tmp_path: Path) -> None:
    window = Window(32, 4)
    with both(tiny_models, tmp_path, "plain", "portable", window) as (one, two, _):
        text = TOKENS * 3
        assert np.abs(one.logits(text) - two.logits(text)).max() < WORST["portable"]


def test_what_ranks_refuse(tiny_models: TinyModels, tmp_path: Path) -> None:
    file, plan = tiny_models._planned("plain")
    for shards in (3, 4):
        with pytest.raises(InvalidField, match=f"shards = {shards} .* 2 heads of keys; at most 2"):
            share_of(plan, 0, shards)
    with ranks_of_plan(plan, file.tensors, tmp_path, "portable") as (runner, _):
        runner.add_sequence(0)
        run(runner, (0, TOKENS[:20]))
        with pytest.raises(TransferRefused, match="several ranks"):
            runner.export_pages(0)
    folders = (tmp_path / "code-0-of-2", tmp_path / "weights-0-of-2")
    sizes = {"num_pages": 8, "max_num_sequence": 4, "max_batch_tokens": 64, "context_window": 64}
    with pytest.raises(BrokenLibrary, match="one of 2 ranks"):
        ModelRunner(*folders, **sizes)
    with (tmp_path / "weights-1-of-2" / "params.bin").open("r+b") as weights:
        weights.write(b"damaged")
    with (
        pytest.raises(BrokenParams, match=r"rank 1: .* checksum"),
        ranks_of_plan(plan, file.tensors, tmp_path, "portable"),
    ):
        pass


def test_a_rank_that_is_killed(tiny_models: TinyModels, tmp_path: Path) -> None:
    """The next step raises, and every later one; no process is left, and no file of memory."""
    file, plan = tiny_models._planned("plain")
    gc.collect()  # what other tests have left
    with ranks_of_plan(plan, file.tensors, tmp_path, "portable") as (runner, group):
        runner.logits(TOKENS)
        assert shared_files() == 1
        (rank,) = group._ranks
        os.kill(rank.process.pid, signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(EngineDead, match=r"rank 1 .* ended by SIGKILL; the model has to"):
                runner.logits(TOKENS)
        assert rank.process.returncode == -signal.SIGKILL
    del runner, group
    gc.collect()
    assert shared_files() == 0


def test_ranks_that_compute_different_steps_end_at_once(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other rank is told of a step with fewer tokens."""
    file, plan = tiny_models._planned("plain")
    with ranks_of_plan(plan, file.tensors, tmp_path, "portable") as (runner, group):
        told: list[bytes] = []
        make = group_file.step_message

        def first(numbers: StepNumbers) -> bytes:
            told.append(make(numbers))
            return told[0]

        monkeypatch.setattr(group_file, "step_message", first)
        runner.logits(TOKENS[:10])
        started = time.monotonic()
        with pytest.raises(EngineDead, match=r"rank . adds \d+ numbers, and rank . adds \d+"):
            runner.logits(TOKENS[:20])
        assert time.monotonic() - started < 10
        (rank,) = group._ranks
        assert rank.process.returncode is not None


def test_ranks_end_together(
    tiny_models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error in a step of rank 0 ends the others, which wait for its sum; a stopped one too."""
    monkeypatch.setattr(group_file, "END_S", 0.3)
    file, plan = tiny_models._planned("plain")
    with ranks_of_plan(plan, file.tensors, tmp_path, "portable") as (runner, group):

        def fail(*_: object) -> None:
            raise ValueError("a fault of rank 0")

        monkeypatch.setattr(runner._step, "forward", fail)
        with pytest.raises(EngineDead, match="a step has failed: a fault of rank 0"):
            runner.logits(TOKENS)
        (rank,) = group._ranks
        assert rank.process.returncode is not None
    with ranks_of_plan(plan, file.tensors, tmp_path, "portable") as (_, group):
        (rank,) = group._ranks
        os.kill(rank.process.pid, signal.SIGSTOP)
    assert rank.process.returncode == -signal.SIGKILL
