"""Threaded engines whose model two processes compute, and the end of one of these."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rank_tools import ranks_of_this_process as children
from threaded_harness import Running, eventually

from mlc_llm.errors import EngineDead
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

GREEDY: dict[str, Any] = {"temperature": 0, "debug_config": {"ignore_eos": True}}
RANKS = {"tensor_parallel_shards": 2, "kernels": "portable"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        shape = TinyShape(layers=2, kv_heads=2, intermediate=128)
        yield write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", shape=shape)


@contextmanager
def engine_of(tiny: Path, **config: Any) -> Iterator[Running]:
    with Running(load=False) as running:
        running.engine.reload(json.dumps({"model": str(tiny), **RANKS, **config}))
        yield running


def test_a_killed_rank_ends_every_request_once(tiny: Path) -> None:
    before = children()
    with engine_of(tiny, max_num_sequence=4) as running:
        (rank,) = children() - before
        for name in "abc":
            running.add(name, name * 30, max_tokens=400, **GREEDY)
        eventually(lambda: running.reader.streams.get("c"), "nothing is computed")
        os.kill(rank, signal.SIGKILL)
        for name in "abc":
            stream = running.reader.end_of(name)
            assert stream.reasons == ["error"] and len(stream.usages) == 1
            assert f"rank 1 (process {rank}) was ended by SIGKILL" in str(stream.error)
        eventually(lambda: running.engine.progress.died is not None, "the engine does not say it")
        with pytest.raises(EngineDead, match="ended by SIGKILL; the model has to be opened again"):
            running.add("later", "text", max_tokens=4)
    eventually(lambda: children() <= before, "a process is left")


def test_unloading_ends_the_ranks(tiny: Path) -> None:
    before = children()
    with engine_of(tiny) as running:
        running.add("a", "text", max_tokens=400, **GREEDY)
        eventually(lambda: running.reader.streams.get("a"), "nothing is computed")
        running.engine.unload()
        assert running.reader.end_of("a").reasons == ["abort"]
        assert children() <= before
        running.engine.reload(json.dumps({"model": str(tiny), **RANKS}))
        assert len(children() - before) == 1
        running.add("b", "text", max_tokens=4, **GREEDY)
        assert running.reader.end_of("b").reasons == ["length"]
    eventually(lambda: children() <= before, "a process is left")
