"""Our own engine for the benchmarks: a runner with one model."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.library.page_format import KV_CACHE_DTYPES, KVCacheDtype
from mlc_llm.precision import PRECISIONS, Precision
from mlc_llm.runtime import model_runner
from mlc_llm.runtime.batch import Batch, BatchRow, Runner, Sampling
from mlc_llm.runtime.library import Library
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import DEFAULT_PREFILL_CHUNK
from mlc_llm.serve.opening.bundle import open_model
from mlc_llm.serve.opening.precision import with_precision
from mlc_llm.serve.opening.runner import create_runner

GREEDY = Sampling(temperature=0.0)
SEQUENCE = 0
CONTEXT = 2048
"""Tokens of KV pages: more than any measurement here needs."""
PRECISION_VARIABLE = "MLC_PRECISION"
"""The environment variable with which `compare.py` sets `precision` in our processes."""
KV_CACHE_VARIABLE = "MLC_KV_CACHE_DTYPE"
"""The environment variable with which `divergence.py` sets `kv_cache_dtype` in our processes."""
ONE_SEQUENCE = EngineConfig(
    max_num_sequence=1,
    max_total_sequence_length=CONTEXT,
    max_single_sequence_length=CONTEXT,
    prefill_chunk_size=DEFAULT_PREFILL_CHUNK,
)


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every script about our engine has."""
    parser.add_argument("--model", help="GGUF file (the default model if not given)")
    parser.add_argument("--kernels", choices=tuple(ISAS), help="forced kernels")
    parser.add_argument("--threads", type=int, default=2)


def add_precision_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of scripts that measure prompts. Other scripts must not accept it."""
    parser.add_argument("--precision", choices=PRECISIONS, default="exact")


def precision_asked() -> Precision:
    """The `precision` of this process. Raises SystemExit for an unknown word."""
    given = os.environ.get(PRECISION_VARIABLE, "exact")
    for known in PRECISIONS:
        if given == known:
            return known
    raise SystemExit(f"{PRECISION_VARIABLE}={given}: one of {', '.join(PRECISIONS)}")


def add_kv_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add the option of scripts that compare kinds of KV pages."""
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default="auto")


def kv_cache_asked() -> KVCacheDtype:
    """The `kv_cache_dtype` of this process. Raises SystemExit for an unknown word."""
    given = os.environ.get(KV_CACHE_VARIABLE, "auto")
    for known in KV_CACHE_DTYPES:
        if given == known:
            return known
    raise SystemExit(f"{KV_CACHE_VARIABLE}={given}: one of {', '.join(KV_CACHE_DTYPES)}")


def versions() -> dict[str, str]:
    """Versions of this package and of its compiler."""
    return {name: version(name) for name in ("mlc-llm", "apache-tvm")}


@contextmanager
def opened_by(library: Callable[[Path], Library]) -> Iterator[None]:
    """Runners open their library with this. (`unittest.mock` would load asyncio and OpenSSL, which
    the memory of a process that serves is not to count.)"""
    vars(model_runner)["Library"] = library
    try:
        yield
    finally:
        vars(model_runner)["Library"] = Library


def open_runner(
    model: Path,
    kernels: str | None,
    threads: int,
    config: EngineConfig = ONE_SEQUENCE,
    *,
    library: Callable[[Path], Library] = Library,
) -> model_runner.ModelRunner:
    """Compile (or load) the model and make a runner.

    config: every limit is set. library: opens the model library, so that it can be measured.
    """
    os.environ["MLC_NUM_THREADS"] = str(threads)
    if kernels is not None:
        os.environ["MLC_LLM_KERNELS"] = kernels
    bundle = open_model(str(model))
    with opened_by(library):
        runner = create_runner(bundle, with_precision(config, bundle))
    assert isinstance(runner, model_runner.ModelRunner), "an encoder"
    return runner


def advance(runner: Runner, ids: Sequence[int], *, is_prompt: bool = False) -> int:
    """Append ids to the sequence, in the longest steps possible. Returns the next greedy id."""
    most = runner.limits.max_batch_tokens
    steps = [ids[start : start + most] for start in range(0, len(ids), most)]
    for step in steps[:-1]:
        runner.run(Batch([BatchRow(SEQUENCE, step, (), is_prompt * len(step))]))
    last = BatchRow(SEQUENCE, steps[-1], (GREEDY,), is_prompt * len(steps[-1]))
    ((sample,),) = runner.run(Batch([last])).samples
    assert sample is not None and sample.error is None, sample
    return sample.token_id


def greedy(runner: Runner, prompt: Sequence[int], count: int) -> list[int]:
    """`count` most likely ids after a prompt. End tokens do not end the answer."""
    runner.add_sequence(SEQUENCE)
    try:
        answer = [advance(runner, prompt, is_prompt=True)]
        while len(answer) < count:
            answer.append(advance(runner, answer[-1:]))
        return answer
    finally:
        runner.remove_sequence(SEQUENCE)
