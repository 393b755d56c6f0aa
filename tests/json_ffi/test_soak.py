"""Whole lives of engines, with four threads at each: no hang, no leak, and an end for everybody."""

from __future__ import annotations

import gc
import logging
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from json_ffi_harness import Answer, read
from threaded_harness import eventually, watched

from mlc_llm.errors import MLCError
from mlc_llm.json_ffi import JSONFFIEngine

ACTIONS = ("generate", "close", "abort", "unload", "reload", "reset", "metrics", "wait")
USAGE = {"include_usage": True}


class Life:
    """One engine from its creation to its end."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.engine = JSONFFIEngine("mock://echo")
        self.answers: list[Answer] = []
        self.faults: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self._user, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(random.Random(self.seed).random() * 0.02)
        self.engine.terminate()
        for thread in threads:
            thread.join()
        assert self.faults == [], f"seed {self.seed}"
        for answer in self.answers:
            assert len(answer.usages) == 1
            assert set(answer.reasons.values()) <= {"stop", "abort", "error"}

    def _user(self, number: int) -> None:
        choice = random.Random(self.seed * 4 + number)
        try:
            for turn in range(4):
                self._act(choice, f"{number}-{turn}")
        except BaseException as fault:
            self.faults.append(fault)

    def _act(self, choice: random.Random, name: str) -> None:
        action = choice.choice(ACTIONS)
        try:
            if action in ("generate", "close", "abort"):
                self._chat(action, choice, name)
            elif action == "wait":
                time.sleep(choice.random() * 0.005)
            elif action == "metrics":
                self.engine.metrics()
            else:
                getattr(self.engine, f"_test_{action}")()
        except MLCError as error:
            # What an engine that is ended, or has nothing loaded, says to its callers.
            words = (
                "terminated",
                "no engine is loaded",
                "no metrics: the request ended with abort",
            )
            assert any(one in str(error) for one in words), error

    def _chat(self, action: str, choice: random.Random, name: str) -> None:
        stream: Any = self.engine.chat.completions.create(
            messages=[{"role": "user", "content": "x" * choice.randrange(1, 200)}],
            n=choice.randrange(1, 3),
            stream_options=USAGE,
            request_id=name,
        )
        first = next(stream)
        if action == "close":
            stream.close()
            return
        if action == "abort":
            time.sleep(choice.random() * 0.005)
            self.engine._ffi["abort"](name)
        rest = read(stream)
        self.answers.append(Answer([first, *rest.chunks]))


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="mlc_llm")


def lives(count: int, start: int) -> None:
    before = threading.active_count()
    for seed in range(start, start + count):
        Life(seed).run()
        eventually(lambda: threading.active_count() == before, f"seed {seed}: a thread is left")


@pytest.mark.slow
def test_fifty_lives() -> None:
    lives(50, start=0)


@pytest.mark.slow
def test_a_thousand_lives_keep_nothing(pytestconfig: pytest.Config) -> None:
    with watched(pytestconfig, 600):
        lives(200, start=1000)
        gc.collect()
        memory, files = resident_bytes(), len(os.listdir("/proc/self/fd"))
        lives(800, start=2000)
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == files
        assert resident_bytes() < memory * 1.05
