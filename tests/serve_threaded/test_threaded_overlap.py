"""The threaded engine where steps are started early: each request gets one end, always."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from typing import Any

import pytest
from threaded_harness import Running

from mlc_llm.errors import DeviceFailed, RequestError
from mlc_llm.runtime.batch import KNOWN, Batch
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.opening import open_engine
from mlc_llm.serve.opening.bundle import echo_bundle
from mlc_llm.testing.fake_runner import FakeRunner

SIZE = replace(
    ModelSize((KVSize(2, 2 * 2 * 2 * 16),), 64, 32, 16, 64, 128, 256, 1024, 1 << 20),
    repeat_bytes=1,
)


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    made = FakeRunner(
        num_pages=400, max_num_sequence=8, max_batch_tokens=64, vocab_size=256, overlaps=True
    )
    monkeypatch.setattr(open_engine, "open_models", lambda *_, **_named: [echo_bundle(1024)])
    monkeypatch.setattr(open_engine, "model_size", lambda bundle, *kinds: SIZE)
    monkeypatch.setattr(open_engine, "create_runner", lambda *arguments: made)
    return made


def running() -> Running:
    found = Running(load=False)
    found.engine.reload(json.dumps({"model": "a model"}))
    return found


def early(runner: FakeRunner) -> int:
    return sum(any(row.chosen_by != KNOWN for row in one.rows) for one in runner.batches)


def test_texts_are_those_of_other_engines(runner: FakeRunner) -> None:
    with running() as engine:
        for i in range(24):
            engine.add(str(i), "hello" * (1 + i % 3), max_tokens=9, temperature=1.0, seed=i % 4)
        found = [engine.reader.end_of(str(i)) for i in range(24)]
    assert [len(one.tokens) for one in found] == [9] * 24
    assert [one.tokens for one in found[:12]] == [one.tokens for one in found[12:]]
    assert found[0].tokens != found[1].tokens
    assert found[3].tokens == _alone(runner, "hello", 3)
    assert early(runner) > 8


def _alone(runner: FakeRunner, text: str, seed: int) -> list[int]:
    with running() as engine:
        engine.add("alone", text, max_tokens=9, temperature=1.0, seed=seed)
        return engine.reader.end_of("alone").tokens


@pytest.mark.parametrize("seed", range(3))
def test_aborts_and_faults(runner: FakeRunner, seed: int, caplog: Any) -> None:
    caplog.set_level("CRITICAL", logger="mlc_llm")
    chance = random.Random(seed)

    def fault(batch: Batch) -> None:
        if chance.random() < 0.03:
            raise RequestError("injected")

    runner.faults.append(fault)
    runner.late_faults.append(fault)
    names = [str(i) for i in range(40)]
    with running() as engine:
        for name in names:
            engine.add(name, "hello", max_tokens=chance.randint(1, 30), temperature=0.0)
            if chance.random() < 0.3:
                engine.engine.abort_request(chance.choice(names))
            if chance.random() < 0.2:
                time.sleep(0.001)
        ends = [engine.reader.end_of(name) for name in names]
        runner.faults.clear()
        runner.late_faults.clear()
        engine.add("later", "hello", max_tokens=5)
        assert engine.reader.end_of("later").reasons == ["length"]
    assert all(len(one.reasons) == len(one.usages) == 1 for one in ends)
    assert {one.reasons[0] for one in ends} <= {"length", "abort", "error"}
    runner.check_integrity()


def test_a_lost_device(runner: FakeRunner, caplog: Any) -> None:
    """All that run end with an error; nothing hangs."""
    caplog.set_level("CRITICAL", logger="mlc_llm")

    def lost(batch: Batch) -> None:
        if len(runner.batches) > 6:
            raise DeviceFailed("injected")

    runner.late_faults.append(lost)
    with running() as engine:
        for i in range(6):
            engine.add(str(i), "hello", max_tokens=200)
        ends = [engine.reader.end_of(str(i)) for i in range(6)]
    assert [one.reasons for one in ends] == [["error"]] * 6
    assert all(one.error == "injected" and len(one.usages) == 1 for one in ends)
