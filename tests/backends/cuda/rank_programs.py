"""What tests of models on several GPUs run in processes where the stand-ins are CUDA and NCCL."""

from __future__ import annotations

import gc
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import kept
import numpy as np
from emulated_models import emulated_into
from fake_cuda import Fake
from model_programs import PROMPTS, TOKENS, answers, engine

from mlc_llm.backends.cuda import nccl, rank_sums
from mlc_llm.backends.cuda.gpu_ranks import environment
from mlc_llm.compiler import build
from mlc_llm.errors import EngineDead, MLCError
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.model_step import Sizes
from mlc_llm.runtime.ranks import group as group_file
from mlc_llm.runtime.ranks.group import RankGroup, start_ranks
from mlc_llm.runtime.ranks.setup import RankSetup

SIZES = Sizes(num_pages=24, max_num_sequence=4, max_batch_tokens=64, context_window=512)
GREEDY = Sampling(temperature=0, top_logprobs=3)


@contextmanager
def shared(*folders: str) -> Iterator[tuple[ModelRunner, RankGroup]]:
    """A model that ranks compute. folders: library and weights of each rank in turn."""
    pairs = list(zip(folders[::2], folders[1::2], strict=True))
    setups = [
        RankSetup(i, len(pairs), *pair, SIZES, None, os.getpid(), environment(i))
        for i, pair in enumerate(pairs)
        if i
    ]
    group, make_step = start_ranks(setups)
    try:
        own = map(Path, pairs[0])
        yield ModelRunner(*own, **SIZES._asdict(), make_step=make_step), group
    finally:
        group.close()


def logits(out: str, *folders: str) -> None:
    """Saves the logits of `TOKENS`, which are the same bits in steps of any size. Prints the tokens
    of `steps`, and what is alive behind the ranks."""
    with shared(*folders) as (runner, group):
        found = [runner.logits(TOKENS, chunk=chunk) for chunk in (64, 7)]
        assert found[0].tobytes() == found[1].tobytes(), "the size of a step matters"
        samples = steps(runner)
        runner.check_integrity()
    np.save(out, found[0])
    del runner, group
    gc.collect()
    tokens = [one.token_id for one in samples]
    print(json.dumps([tokens, Fake().alive()]))


def run(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[Sampled]:
    batch = Batch([BatchRow(seq_id, ids, [GREEDY]) for seq_id, ids in rows])
    return [sample for (sample,) in runner.run(batch).samples]


def steps(runner: ModelRunner) -> list[Sampled]:
    """A batch, a fork in the middle of a page, and a rollback."""
    for seq_id in (0, 1):
        runner.add_sequence(seq_id)
    found = run(runner, (0, TOKENS[:21]), (1, TOKENS[30:40]))
    runner.fork_sequence(0, 2, 19)
    found += run(runner, (0, [1]), (2, [2, 3, 4]), (1, [5]))
    runner.rollback_sequence(2, 2)
    runner.remove_sequence(0)
    found += run(runner, (2, [9]))
    runner.reset()
    return found


def one_process(library: str, weights: str, out: str) -> None:
    """Saves the logits, and prints the tokens of the same steps."""
    runner = ModelRunner(Path(library), Path(weights), **SIZES._asdict())
    np.save(out, runner.logits(TOKENS))
    print(json.dumps([one.token_id for one in steps(runner)]))


def killed(*folders: str) -> None:
    """A rank is killed between steps."""
    fault(lambda runner, group: os.kill(group._ranks[0].process.pid, signal.SIGKILL), *folders)


def killed_in_a_step(*folders: str) -> None:
    """A rank is killed when rank 0 has begun a step that it does not know."""

    def kill(runner: ModelRunner, group: RankGroup) -> None:
        forward = runner._step.forward
        os.kill(group._ranks[0].process.pid, signal.SIGSTOP)

        def late(*inputs: object) -> object:
            os.kill(group._ranks[0].process.pid, signal.SIGKILL)
            return forward(*inputs)

        runner._step.forward = late  # type: ignore[assignment]

    fault(kill, *folders)


def stopped(*folders: str) -> None:
    """A rank stands still."""
    rank_sums.STALLED_S, nccl.CALL_S, group_file.END_S = 1.0, 0.5, 0.3
    fault(lambda runner, group: os.kill(group._ranks[0].process.pid, signal.SIGSTOP), *folders)


def broken(*folders: str) -> None:
    """A rank gets an error from its GPU, as the environment says."""
    fault(lambda runner, group: None, *folders)


def fault(make: Callable[[ModelRunner, RankGroup], None], *folders: str) -> None:
    """Prints the errors of two steps behind a fault, how long the first one took, the exit code of
    the other rank, and what is alive at the end."""
    errors = []
    with shared(*folders) as (runner, group):
        runner.logits(TOKENS[:20])
        make(runner, group)
        started = time.monotonic()
        for _ in range(2):
            try:
                runner.logits(TOKENS[:20])
            except EngineDead as error:
                errors.append(str(error))
            took = time.monotonic() - started
        code = group._ranks[0].process.returncode
    del runner, group
    gc.collect()
    print(json.dumps([errors, took, code, Fake().alive()]))


def ended_with_rank_0(*folders: str) -> None:
    """Prints the process of a rank, and is killed in the middle of a step."""
    with shared(*folders) as (runner, group):
        runner.logits(TOKENS[:20])
        print(group._ranks[0].process.pid, flush=True)
        all_reduce = rank_sums.NcclSums.add

        def die(self: Any, x: Any, total: Any) -> None:
            all_reduce(self, x, total)
            os.kill(os.getpid(), signal.SIGKILL)

        rank_sums.NcclSums.add = die  # type: ignore[method-assign]
        runner.logits(TOKENS[:20])


def shared_engine(model: str, root: str, shards: int) -> Any:
    """An engine whose library is compiled for the emulator. root: of what tests keep."""
    kept._state["root"] = Path(root)
    build.build_library = emulated_into
    return engine(model, None, "cuda", tensor_parallel_shards=shards)


def opened(model: str, root: str) -> None:
    """Compiles what `texts` needs: who has loaded the compiler lets go of engines late."""
    for shards in (1, 2):
        shared_engine(model, root, shards)


def texts(model: str, root: str) -> None:
    """Prints the answers of an engine with one rank and of one with two; then what its requests end
    with when a rank is killed, and what is alive behind the engine."""
    found = []
    for shards in (1, 2):
        made = shared_engine(model, root, shards)
        greedy = {"max_tokens": 12, "temperature": 0.0}
        found.append([answers(made), made.generate(PROMPTS, greedy)[0]])
    os.kill(rank_of_this_process(), signal.SIGKILL)
    errors = []
    for _ in range(2):
        try:
            made.generate(PROMPTS[:1], {"max_tokens": 4})
        except MLCError as error:
            errors.append(f"{type(error).__name__}: {error}")
    del made
    gc.collect()
    print(json.dumps([found, errors, Fake().alive()]))


def rank_of_this_process() -> int:
    from rank_tools import ranks_of_this_process

    (found,) = ranks_of_this_process()
    return found


def refused(model: str, root: str) -> None:
    """Prints what is said to more ranks than GPUs, and to a model that cannot be split."""
    for shards in (3, 2):
        try:
            shared_engine(model, root, shards)
        except MLCError as error:
            print(error)
