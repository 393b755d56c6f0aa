"""Threads are always joined, and a test that hangs says where. One open server for most tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from server_harness import Running, running
from threaded_harness import limit_of, slow_steps, watched


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    # Some tests start processes, and wait for limits of time.
    with watched(request.config, 8 * limit_of(request.node)), slow_steps():
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as made:
        yield made
