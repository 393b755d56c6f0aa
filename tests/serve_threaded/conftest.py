"""Threads are always joined, and a test that hangs says where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threaded_harness import (
    limit_of,
    no_thread_is_left,
    slow_steps,
    watched,
)


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    with watched(request.config, limit_of(request.node)), no_thread_is_left(), slow_steps():
        yield
