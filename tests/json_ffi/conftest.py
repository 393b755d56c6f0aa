"""Threads are always joined, and a test that hangs says where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threaded_harness import (
    COMPILING_SECONDS,
    WATCH_SECONDS,
    no_thread_is_left,
    slow_steps,
    watched,
)


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest) -> Iterator[None]:
    has_model = request.node.get_closest_marker("model") is not None
    with (
        watched(request.config, COMPILING_SECONDS if has_model else WATCH_SECONDS),
        no_thread_is_left(),
        slow_steps(),
    ):
        yield
