"""Threads are always joined, and a test that hangs says where. One echo engine of each kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from threaded_harness import limit_of, no_thread_is_left, slow_steps, watched

from mlc_llm import AsyncMLCEngine, MLCEngine
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.tiny_model import write_tiny_model

ECHO = "mock://echo"
SMALL = {"max_num_sequence": 4, "max_total_sequence_length": 2048, "prefill_chunk_size": 256}


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    with watched(request.config, limit_of(request.node)), no_thread_is_left(), slow_steps():
        yield


@pytest.fixture
def engine() -> Iterator[MLCEngine]:
    with MLCEngine(ECHO) as made:
        yield made


@pytest.fixture
def async_engine() -> Iterator[AsyncMLCEngine]:
    made = AsyncMLCEngine(ECHO)
    yield made
    made.terminate()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        path = write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", kinds={"": "F32"})
        SyncMLCEngine(str(path), "cpu", engine_config=SMALL)  # compiles it, without a watch
        yield path


@pytest.fixture
def model(tiny: Path) -> Iterator[MLCEngine]:
    with MLCEngine(str(tiny), engine_config={**SMALL, "pooling": "last_token"}) as made:
        yield made
