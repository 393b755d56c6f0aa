"""Threads are always joined, and a test that hangs says where. One echo engine of each kind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threaded_harness import limit_of, no_thread_is_left, slow_steps, watched

from mlc_llm import AsyncMLCEngine, MLCEngine

ECHO = "mock://echo"


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
