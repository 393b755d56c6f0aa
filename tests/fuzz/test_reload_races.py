"""Threads add, abort, reload, reset and unload at once: every request that was accepted has one
usage, and none runs on another model than the one that it was made for.

Each load's defaults hold a seed of its own, which is in every request made for it, and each load's
core writes that number into the usages that it makes. So a usage says both.
"""

from __future__ import annotations

import itertools
import json
import logging
import random
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from threaded_harness import ECHO, Running, eventually, no_thread_is_left, slow_steps, watched

from mlc_llm.errors import MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import TextData
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded import worker as threaded_worker

RACES, USERS, TURNS = 40, 4, 15
OPERATIONS = ("reload", "reset", "unload")
REASONS = {"stop", "length", "abort", "error"}


def numbered(number: int, opened: OpenEngine) -> OpenEngine:
    """A load whose requests and whose usages carry its number."""
    core: Any = opened.core
    close = core._telemetry.close

    def closed(state: Any, reason: str) -> str:
        usage = json.loads(close(state, reason))
        usage["extra"]["ran_on"] = number
        return json.dumps(usage)

    core._telemetry.close = closed
    defaults = GenerationConfig(seed=number).merged_over(opened.bundle.defaults)
    return replace(opened, bundle=replace(opened.bundle, defaults=defaults))


class Race:
    """One engine, its users, and an operator who reloads it under them."""

    def __init__(self, seed: int, running: Running) -> None:
        self.seed, self.running, self.engine = seed, running, running.engine
        self.accepted: dict[str, str] = {}
        """Prompts by id."""
        self.refused: dict[str, BaseException] = {}
        self.faults: list[BaseException] = []
        self.users_left = USERS

    def run(self) -> None:
        threads = [threading.Thread(target=self._user, args=(i,)) for i in range(USERS)]
        threads.append(threading.Thread(target=self._operator))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert self.faults == [], f"seed {self.seed}"
        self.engine.reload(ECHO)
        assert self.running.works()
        for name, prompt in self.accepted.items():
            self._check(name, prompt)
        assert not self.refused.keys() & self.running.reader.streams.keys()
        open_requests = self.running.engine._intake._open_requests
        eventually(lambda: not open_requests._by_id, "a request is left open")

    def _check(self, name: str, prompt: str) -> None:
        stream = self.running.reader.end_of(name)
        assert len(stream.usages) == 1 and set(stream.reasons) <= REASONS
        assert prompt.startswith(stream.text)
        assert stream.text == prompt or stream.reasons != ["stop"]
        extra = stream.usages[0].get("extra")
        if extra is not None:
            assert extra["ran_on"] == extra["seed"], f"seed {self.seed}: {name} ran on another load"
        if stream.reasons == ["error"]:
            words = ("was reloaded", "no engine is loaded")
            assert any(one in str(stream.error) for one in words), stream.error

    def _user(self, number: int) -> None:
        choice = random.Random(self.seed * 100 + number)
        try:
            for turn in range(TURNS):
                self._ask(choice, f"{number}-{turn}")
                if choice.random() < 0.3:
                    self.engine.abort_request(f"{choice.randrange(USERS)}-{turn}")
        except BaseException as fault:
            self.faults.append(fault)
        finally:
            self.users_left -= 1

    def _ask(self, choice: random.Random, name: str) -> None:
        prompt = "x" * choice.randrange(1, 30)
        config = self._config(choice)
        pause = choice.random() * 0.004 * choice.randrange(2)

        def make() -> Request:
            request = self.engine.create_request(name, TextData(prompt), config)
            time.sleep(pause)
            return request

        try:
            if choice.random() < 0.5:
                self.engine.make_and_add(name, 1, make)
            else:
                self.engine.add_request(make())
        except MLCError as error:
            assert "no engine is loaded" in str(error)
            self.refused[name] = error
        else:
            self.accepted[name] = prompt

    def _config(self, choice: random.Random) -> GenerationConfig:
        """Some with a grammar that was never compiled before, or stop strings that never come."""
        kind = choice.randrange(4)
        if kind == 0:
            schema = {"enum": [choice.randrange(10**6), "x" * choice.randrange(2000)]}
            wanted = {"type": "json_object", "schema": json.dumps(schema)}
            return GenerationConfig(response_format=wanted)  # type: ignore[arg-type]
        if kind == 1:
            return GenerationConfig(stop_strs=["y" * 1000, "xy"])
        return GenerationConfig()

    def _operator(self) -> None:
        choice = random.Random(self.seed)
        try:
            while self.users_left:
                operation = choice.choice(OPERATIONS)
                if operation == "reload":
                    self.engine.reload(ECHO)
                else:
                    getattr(self.engine, operation)()
                time.sleep(choice.random() * 0.01)
                if operation == "unload":
                    self.engine.reload(ECHO)
        except BaseException as fault:
            self.faults.append(fault)


@pytest.mark.slow
def test_reload_races(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, logger="mlc_llm")
    numbers = itertools.count(1)
    monkeypatch.setattr(
        threaded_worker, "open_engine", lambda *args: numbered(next(numbers), open_engine(*args))
    )
    reasons: set[str] = set()
    with watched(pytestconfig, 300), no_thread_is_left(), slow_steps():
        for seed in range(RACES):
            with Running() as running:
                Race(seed, running).run()
                streams = running.reader.streams.values()
                reasons |= {f"{one.reasons[0]} {one.error or ''}"[:17] for one in streams}
    assert {"stop ", "abort ", "error the model w"} <= reasons, "the races missed something"
