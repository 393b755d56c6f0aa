"""Threads are always joined, and a test that hangs says where."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from threaded_harness import no_thread_is_left, slow_steps, watched


@pytest.fixture(autouse=True)
def watch(pytestconfig: pytest.Config) -> Iterator[None]:
    with watched(pytestconfig), no_thread_is_left(), slow_steps():
        yield
