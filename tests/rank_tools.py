"""Models of tests that several ranks compute."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from kept_libraries import build_kept

from mlc_llm.backends.registry import backend_of, choose_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.shared import block_of
from mlc_llm.models.sharding import Share, shared_plan
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.model_step import Sizes
from mlc_llm.runtime.ranks.group import RankGroup, start_ranks
from mlc_llm.runtime.ranks.setup import RankSetup


def share_of(plan: WeightPlan, rank: int, shards: int) -> WeightPlan:
    return shared_plan(plan, Share(rank, shards), block_of)


@contextmanager
def ranks_of_plan(
    plan: WeightPlan,
    tensors: Mapping[str, Tensor],
    folder: Path,
    kernels: str | None,
    shards: int = 2,
    *,
    num_pages: int = 24,
    window: Window | None = None,
) -> Iterator[tuple[ModelRunner, RankGroup]]:
    """As `architecture_tools.runner_of_plan`. The other ranks end behind the block."""
    if window is not None:
        plan = WeightPlan(plan.spec.with_sink_queries(), plan.matrices, plan.vectors)
    backend = choose_backend() if kernels is None else backend_of(kernels)
    sizes = Sizes(num_pages, 4, 64, 512)
    folders = []
    for rank in range(shards):
        own = share_of(plan, rank, shards)
        library, weights = (folder / f"{part}-{rank}-of-{shards}" for part in ("code", "weights"))
        if not library.exists():
            library.mkdir()
            weights.mkdir()
            build_kept(own.spec, backend, library)
            pack_weights(own, backend, tensors, weights, lambda _: None)
        folders.append((library, weights))
    setups = [
        RankSetup(rank, shards, str(library), str(weights), sizes, window, os.getpid(), {})
        for rank, (library, weights) in enumerate(folders)
        if rank
    ]
    group, make_step = start_ranks(setups)
    try:
        runner = ModelRunner(*folders[0], **sizes._asdict(), window=window, make_step=make_step)
        yield runner, group
    finally:
        group.close()


def ranks_of_this_process() -> set[int]:
    """Processes."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        pids: list[str] = []
        with suppress(OSError):  # a thread or a process has ended meanwhile
            pids = (task / "children").read_text().split()
        for pid in pids:
            with suppress(OSError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes()
                found |= {int(pid)} if b"mlc_llm.runtime.ranks.process" in words else set()
    return found
