"""An exception from outside leaves an operation half done: the core ends all and goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from core_harness import Harness

from mlc_llm.runtime.batch import Batch


class Torn(BaseException):
    """As a signal handler may raise it, or another thread into this one."""


def tear(*args: Any) -> None:
    raise Torn


def torn_step(harness: Harness, patch: pytest.MonkeyPatch) -> None:
    def fault(batch: Batch) -> None:
        harness.runner.faults.clear()
        raise Torn

    harness.runner.faults.append(fault)
    with pytest.raises(Torn):
        harness.step()


def torn_bookkeeping(harness: Harness, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as inside:
        inside.setattr(harness.core._postprocessor, "commit_row", tear)
        with pytest.raises(Torn):
            harness.step()


def torn_abort(harness: Harness, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as inside:
        inside.setattr(harness.runner, "remove_sequence", tear)
        with pytest.raises(Torn):
            harness.abort("a")


def torn_add(harness: Harness, patch: pytest.MonkeyPatch) -> None:
    with patch.context() as inside:
        inside.setattr(harness.core._scheduler, "add", tear)
        with pytest.raises(Torn):
            harness.add("torn", [9] * 4)
    harness.core._requests._by_id.pop("torn")  # nobody heard that it was accepted


Tear = Callable[[Harness, pytest.MonkeyPatch], None]


@pytest.mark.parametrize("torn", [torn_step, torn_bookkeeping, torn_abort, torn_add])
@pytest.mark.parametrize("mend", ["reset", "abort", "step", "add"])
def test_what_comes_next_mends_it(torn: Tear, mend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(expected_error="interrupted")
    harness.add("a", [1, 2, 3] * 5, max_tokens=40)
    harness.add("b", [4] * 15, max_tokens=40, n=2)
    harness.step()
    torn(harness, monkeypatch)
    if mend == "abort":
        harness.abort("a")
    elif mend != "add":
        getattr(harness, mend)()
    if mend != "add":
        assert all(harness.seen[name].usage is not None for name in "ab")
        assert harness.core.is_idle
        harness.core.check_integrity()
    harness.add("c", [7] * 20, max_tokens=4)
    answer = harness.run()["c"]
    fresh = Harness()
    fresh.add("c", [7] * 20, max_tokens=4)
    assert answer.tokens == fresh.run()["c"].tokens
