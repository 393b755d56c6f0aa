"""What an engine takes of the memory when others of the same user have taken some before."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from mlc_llm.errors import UserError
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.memory_plan import KVSize, ModelSize
from mlc_llm.serve.opening import memory
from mlc_llm.serve.opening.memory import look_at_memory
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.support import promises
from mlc_llm.support.processes import Process

GB = 2**30
SMALL = ModelSize(
    (KVSize(30, 2 * 30 * 3 * 64, 4),),
    576,
    192,
    64,
    576,
    1536,
    49152,
    8192,
    weight_bytes=100 * 2**20,
)
SERVER = EngineConfig(mode="server")


@pytest.fixture(autouse=True)
def _free(tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is promised here is ever touched, and nobody else promises anything."""
    monkeypatch.setattr(promises, "_FOLDER", f"engines/{tmp_path.name}")
    monkeypatch.setattr(memory, "free_memory", lambda: 8 * GB)
    monkeypatch.setattr(promises, "process_of", lambda pid: Process("1", 0))


def test_two_servers_share_what_there_is(caplog: pytest.LogCaptureFixture) -> None:
    first, plan, held = look_at_memory().take(SERVER, SMALL, "first")
    assert plan.budget == int(8 * GB * 0.85) and not caplog.records
    total = plan.total(first.max_total_sequence_length or 0)
    second, less, held_too = look_at_memory().take(SERVER, SMALL, "second")
    both = total + less.total(second.max_total_sequence_length or 0)
    assert total < both <= 8 * GB and less.free == 8 * GB - total
    (said,) = (record.message for record in caplog.records)
    assert f"the KV cache holds {second.max_total_sequence_length} tokens, not " in said
    assert f"memory is promised to others: {total / 2**20:.0f} MB to first (process " in said
    with pytest.raises(UserError, match=r"MB free \(promised .* to first .* to second .*\), of "):
        look_at_memory().take(EngineConfig(max_total_sequence_length=10**6), SMALL, "third")
    held.release()
    held_too.release()
    assert look_at_memory().take(SERVER, SMALL, "again")[0] == first


def test_who_needs_no_less_hears_nothing(caplog: pytest.LogCaptureFixture) -> None:
    held = [look_at_memory().take(EngineConfig(), SMALL, "one")[2] for _ in range(2)]
    assert not caplog.records
    for one in held:
        one.release()


def test_a_promise_made_after_the_look_counts_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    before = look_at_memory()
    _, plan, held = look_at_memory().take(SERVER, SMALL, "quicker")
    monkeypatch.setattr(promises, "process_of", lambda pid: Process("1", GB))
    _, less, held_too = before.take(SERVER, SMALL, "slower")
    assert less.free <= 8 * GB - plan.budget * 0.99
    held.release()
    held_too.release()


def test_engines_promise_while_they_live(tiny: Path) -> None:
    def standing() -> list[str]:
        gc.collect()
        return [one.model for one in promises.standing().values()]

    first = SyncMLCEngine(str(tiny), mode="server")
    second = SyncMLCEngine(str(tiny))
    assert standing() == ["tiny", "tiny"]
    del first
    assert standing() == ["tiny"]
    del second
    assert standing() == []


def test_an_engine_that_does_not_open_promises_nothing(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise UserError("no")

    monkeypatch.setattr("mlc_llm.serve.opening.open_engine.create_runner", broken)
    with pytest.raises(UserError, match="no"):
        SyncMLCEngine(str(tiny))
    assert promises.standing() == {}


def test_a_second_engine_that_does_not_fit_says_who_has_the_memory(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 100 * 2**20)
    first = SyncMLCEngine(str(tiny), mode="server")
    with pytest.raises(UserError, match=r"promised to others: .* MB to tiny \(process"):
        SyncMLCEngine(str(tiny), mode="server")
    del first
