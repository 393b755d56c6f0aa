"""Steps that are started while the one before computes: the same tokens, and one end a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from core_harness import Harness, Seen, prompt_of
from hostile_grammars import regex

from mlc_llm.errors import DeviceFailed, EngineDead, RequestError
from mlc_llm.runtime.batch import KNOWN, Batch, BatchOutput
from mlc_llm.runtime.limits import Window
from mlc_llm.serve.config import EngineConfig
from mlc_llm.testing.fake_runner import FakeRunner, FakeStep

Requests = dict[str, dict[str, Any]]
MIXED: Requests = {
    "greedy": {"max_tokens": 20},
    "drawn": {"max_tokens": 25, "temperature": 1.0, "seed": 3},
    "several": {"max_tokens": 12, "temperature": 1.0, "seed": 4, "n": 3},
    "stopped": {"max_tokens": 40, "temperature": 1.0, "seed": 5, "stop_strs": ["a", "e", "z"]},
    "one": {"max_tokens": 1},
    "scored": {"max_tokens": 9, "logprobs": True, "top_logprobs": 2},
    "penalised": {"max_tokens": 12, "temperature": 1.0, "seed": 6, "presence_penalty": 1.0},
    "grammar": {
        "max_tokens": 12,
        "temperature": 1.0,
        "seed": 7,
        "response_format": regex("[a-f]+"),
    },
    "biased": {"max_tokens": 8, "logit_bias": {70: 20.0}},
}
FREE = ("greedy", "drawn", "several", "stopped", "one", "scored", "biased")


def runner_of(*, overlaps: bool, window: Window | None = None, slots: int = 16) -> FakeRunner:
    return FakeRunner(
        num_pages=200, page_size=4, max_num_sequence=slots, window=window, overlaps=overlaps
    )


def harness_of(
    runner: FakeRunner,
    error: str = "no error",
    stops: tuple[int, ...] = (),
    config: EngineConfig | None = None,
) -> Harness:
    return Harness(runner, config or EngineConfig(), expected_error=error, stop_token_ids=stops)


def added(harness: Harness, names: Any = tuple(MIXED)) -> Harness:
    for i, name in enumerate(names):
        harness.add(name, prompt_of(5 + 3 * i, i), **MIXED[name])
    return harness


def early(runner: FakeRunner) -> int:
    """Steps that were started before the one before them had ended."""
    return sum(any(row.chosen_by != KNOWN for row in one.rows) for one in runner.batches)


def said(seen: dict[str, Seen]) -> dict[str, Any]:
    return {name: (one.tokens, one.reasons, one.logprobs, one.cut) for name, one in seen.items()}


@pytest.mark.parametrize("names", [tuple(MIXED), FREE, ("greedy",), ("grammar", "penalised")])
@pytest.mark.parametrize("window", [None, Window(9), Window(7, 3)])
def test_same_tokens(names: tuple[str, ...], window: Window | None) -> None:
    runner = runner_of(overlaps=True, window=window)
    found = added(harness_of(runner), names).run()
    plain = added(harness_of(runner_of(overlaps=False, window=window)), names).run()
    assert said(found) == said(plain)
    assert (early(runner) > 5) == any(name in FREE for name in names)


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_requests_wait_for_slots(slots: int) -> None:
    """Those that wait begin as soon as a slot is free, and others go on early meanwhile."""
    runner = runner_of(overlaps=True, slots=slots)
    found = added(harness_of(runner), FREE).run()
    assert said(found) == said(added(harness_of(runner_of(overlaps=False)), FREE).run())
    assert early(runner) > 10


def test_stop_tokens() -> None:
    """A sequence that stops has been computed one token too far, which nobody sees."""
    stops = tuple(range(0, 300, 9))
    runner = runner_of(overlaps=True)
    found = added(harness_of(runner, stops=stops), FREE).run()
    plain = added(harness_of(runner_of(overlaps=False), stops=stops), FREE).run()
    assert said(found) == said(plain)
    assert "stop" in {reason for one in found.values() for reason in one.reasons}


@pytest.mark.parametrize(
    "config",
    [
        EngineConfig(prefix_cache_mode="disable"),
        EngineConfig(prefix_cache_max_num_recycling_seqs=0),
    ],
)
def test_stop_tokens_where_nothing_is_kept(config: EngineConfig) -> None:
    stops = tuple(range(0, 300, 9))
    runner = runner_of(overlaps=True)
    found = added(harness_of(runner, stops=stops, config=config), FREE).run()
    plain = added(harness_of(runner_of(overlaps=False), stops=stops, config=config), FREE).run()
    assert said(found) == said(plain)
    assert "stop" in {reason for one in found.values() for reason in one.reasons}


@pytest.mark.parametrize("known", range(13, 17))
def test_lengths_where_the_first_of_a_group_fails(known: int) -> None:
    """Its tokens tell how far all are, and it gets no more."""
    runner = runner_of(overlaps=True)
    harness = harness_of(runner, error="not finite")
    first = prompt_of(5)
    runner.bad_rows = lambda tokens: list(tokens[:5]) == first and len(tokens) >= known
    for i, name in enumerate("abc"):
        harness.add(name, prompt_of(5, i), max_tokens=12)
    found = harness.run()
    assert [len(found[name].tokens[0]) for name in "bc"] == [12, 12]
    assert found["a"].reasons == ["error"] and len(found["a"].tokens[0]) < 12


def test_a_stopped_sequence_is_continued_from_the_prefix_cache() -> None:
    runner = runner_of(overlaps=True)
    stops = tuple(range(0, 300, 7))
    harness = harness_of(runner, stops=stops)
    harness.add("first", prompt_of(9), max_tokens=60, temperature=1.0, seed=2)
    harness.add("beside", prompt_of(5, 3), max_tokens=60, temperature=1.0, seed=9)
    first = harness.run()["first"]
    assert first.reasons == ["stop"]
    whole = [*prompt_of(9), *first.tokens[0], 1, 2, 3]
    harness.add("second", whole, max_tokens=6)
    found = harness.run()["second"]
    plain = harness_of(runner_of(overlaps=False), stops=stops)
    plain.add("second", whole, max_tokens=6)
    assert found.tokens == plain.run()["second"].tokens
    assert found.usage is not None and found.usage["prompt_tokens"] == len(whole)


@pytest.mark.parametrize("step", range(1, 12, 2))
def test_abort_while_a_step_is_under_way(step: int) -> None:
    runner = runner_of(overlaps=True)
    harness = added(harness_of(runner), FREE)
    for _ in range(step):
        harness.step()
    aborted = [name for name in ("drawn", "several") if harness.core.has_request(name)]
    for name in aborted:
        harness.abort(name)
        harness.core.check_integrity()
    found, plain = harness.run(), added(harness_of(runner_of(overlaps=False)), FREE).run()
    for name, one in found.items():
        for tokens, whole in zip(one.tokens, plain[name].tokens, strict=True):
            assert tokens == (whole[: len(tokens)] if name in aborted else whole)


def test_all_are_aborted_while_a_step_is_under_way() -> None:
    runner = runner_of(overlaps=True)
    harness = added(harness_of(runner), FREE)
    for _ in range(4):
        harness.step()
    for name in FREE:
        if harness.core.has_request(name):
            harness.abort(name)
    assert harness.core.is_idle
    assert harness.core.step() == [] and runner.batches[-1].rows, "nobody asks what it gave"
    harness.add("later", prompt_of(30, 5), max_tokens=7)
    plain = harness_of(runner_of(overlaps=False))
    plain.add("later", prompt_of(30, 5), max_tokens=7)
    assert harness.run()["later"].tokens == plain.run()["later"].tokens


def failing(*steps: int, error: type[Exception] = RequestError) -> Callable[[Batch], None]:
    """Fails at these calls."""
    calls = iter(range(1000))

    def fault(batch: Batch) -> None:
        if next(calls) in steps:
            raise error("injected")

    return fault


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("at", range(12))
def test_a_step_fails_once(at: int, is_late: bool) -> None:
    """It is computed again, row by row, and so is the one that was started behind it."""
    runner = runner_of(overlaps=True, window=Window(9) if at % 2 else None)
    (runner.late_faults if is_late else runner.faults).append(failing(at))
    found = added(harness_of(runner, "injected"), FREE).run()
    plain = runner_of(overlaps=False, window=runner.limits.window)
    assert said(found) == said(added(harness_of(plain), FREE).run())


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("at", [0, 3, 6])
def test_a_device_is_lost(at: int, is_late: bool) -> None:
    """Each request ends with an error, once, and nothing hangs."""
    runner = runner_of(overlaps=True)
    steps, faults = range(at, 1000), runner.late_faults if is_late else runner.faults
    faults.append(failing(*steps, error=DeviceFailed))
    found = added(harness_of(runner, "injected"), FREE).run(limit=60)
    assert any(one.error for one in found.values())
    for one in found.values():
        assert one.usage is not None
        assert (one.error is not None) == ("error" in one.reasons)


def test_the_engine_dies() -> None:
    runner = runner_of(overlaps=True)
    runner.late_faults.append(failing(4, error=EngineDead))
    harness = added(harness_of(runner, "injected"), FREE)
    found = harness.run()
    assert harness.core.fault == "injected"
    assert all(one.usage is not None for one in found.values())


def test_logits_that_are_not_finite() -> None:
    """The row behind it is computed for nothing, and only that request fails."""
    runner = runner_of(overlaps=True)
    runner.bad_rows = lambda tokens: tokens[:5] == prompt_of(5, 1)[:5] and len(tokens) == 14
    harness = harness_of(runner, "not finite")
    for i in range(3):
        harness.add(str(i), prompt_of(8, i), max_tokens=20)
    found = harness.run()
    assert [found[name].error is not None for name in "012"] == [False, True, False]
    plain = harness_of(runner_of(overlaps=False))
    for i in (0, 2):
        plain.add(str(i), prompt_of(8, i), max_tokens=20)
    expected = plain.run()
    assert all(found[name].tokens == expected[name].tokens for name in "02")


def test_pages_lack() -> None:
    """Then the next step waits for this one: sequences are preempted and computed again."""
    found = []
    for overlaps in (True, False):
        runner = FakeRunner(num_pages=14, page_size=4, max_num_sequence=4, overlaps=overlaps)
        harness = harness_of(runner)
        for i in range(4):
            harness.add(str(i), prompt_of(9, i), max_tokens=18, temperature=1.0, seed=i)
        found.append(said(harness.run()))
        assert harness.core.num_preemptions > 0
    assert found[0] == found[1]


def test_reset_while_a_step_is_under_way() -> None:
    harness = added(harness_of(runner_of(overlaps=True)), FREE)
    for _ in range(4):
        harness.step()
    harness.reset()
    harness.core.check_integrity()
    harness.add("later", prompt_of(9), max_tokens=5)
    assert len(harness.run()["later"].tokens[0]) == 5


class SlowRunner(FakeRunner):
    """A device that takes some time for each step, one after the other."""

    def __init__(self, seconds: float, **limits: Any) -> None:
        super().__init__(**limits)
        self._seconds, self._free_at = seconds, 0.0
        self.idle = 0.0
        """Seconds that the device had nothing to do."""
        self.threads: set[int] = set()

    def submit(self, batch: Batch, after: FakeStep | None = None) -> FakeStep:
        now = time.perf_counter()
        self.idle += max(now - self._free_at, 0.0) if self._free_at else 0.0
        self._free_at = max(self._free_at, now) + self._seconds
        step = super().submit(batch, after)
        step.ready_at = self._free_at  # type: ignore[attr-defined]
        self.threads.add(threading.get_ident())
        return step

    def collect(self, started: FakeStep) -> BatchOutput:
        time.sleep(max(started.ready_at - time.perf_counter(), 0))  # type: ignore[attr-defined]
        return super().collect(started)


@pytest.mark.timing
def test_the_time_of_a_step_is_that_of_the_device() -> None:
    """Also where nobody asks for a step for a long time."""
    runner = SlowRunner(0.01, overlaps=True, num_pages=100)
    harness = harness_of(runner)
    harness.add("0", prompt_of(5), max_tokens=12)
    while not harness.core.is_idle:
        harness.step()
        time.sleep(0.03 if harness.steps == 6 else 0)
    metrics = harness.core.metrics()
    decoded, prefilled = metrics["engine_decode_time_sum"], metrics["engine_prefill_time_sum"]
    assert decoded + prefilled > 11 * 0.009
    assert decoded < 12 * 0.01 + 0.02


@pytest.mark.timing
def test_the_device_is_busy_while_the_host_works() -> None:
    runner = SlowRunner(0.02, overlaps=True, num_pages=100)
    harness = harness_of(runner)
    for i in range(4):
        harness.add(str(i), prompt_of(5, i), max_tokens=20)
    start = time.perf_counter()
    harness.run()
    assert runner.idle < 0.25 * (time.perf_counter() - start)
