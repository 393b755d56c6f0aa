"""Cores that a replica has for itself."""

from __future__ import annotations

import os
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from replica_harness import replica, settings

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.ray.cores import OwnCores
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.settings import AppSettings

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are bound on Linux only")


def allowed() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_no_core_is_given_twice(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    all_of_them = [OwnCores(1, tmp_path) for _ in allowed()]
    assert sorted(core for one in all_of_them for core in one.cores) == allowed()
    assert not OwnCores(1, tmp_path).cores
    assert "a replica wants 1 cores, and 0 are free" in caplog.text
    all_of_them[0].release()
    assert OwnCores(1, tmp_path).cores == {allowed()[0]}


def test_who_gets_too_few_has_none(tmp_path: Path) -> None:
    assert not OwnCores(len(allowed()) + 1, tmp_path).cores
    assert OwnCores(len(allowed()), tmp_path).cores == set(allowed())


def test_only_the_thread_that_computes_is_bound(tmp_path: Path) -> None:
    before, found = allowed(), []
    own = OwnCores(1, tmp_path)

    def work() -> None:
        own.stay()
        inner = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
        inner.start()
        inner.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [set(own.cores)] and allowed() == before


def test_a_replica_computes_on_its_cores() -> None:
    """Of `num_cpus`, until it is closed."""
    given = settings(own_cores=True)
    one = ModelReplica(given, given.engine)
    try:
        assert one._cores is not None and len(one._cores.cores) == 1
        bound = [t for t in threading.enumerate() if t.name == "mlc-engine" and t.native_id]
        assert any(os.sched_getaffinity(t.native_id or 0) == one._cores.cores for t in bound)
    finally:
        one.close()
    assert not one._cores.cores
    other = replica()
    assert other._cores is None
    other.close()


def test_a_replica_that_does_not_open_leaves_its_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while somebody still looks at the error, and so at the replica."""
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    given = replace(settings(own_cores=True), model=str(tmp_path / "gone.gguf"))
    with pytest.raises(MLCError, match=r"gone\.gguf") as error:
        ModelReplica(given, given.engine)
    assert OwnCores(len(allowed())).cores == set(allowed())
    assert error.tb is not None


@pytest.mark.parametrize("cpus", [0.5, 1.5])
def test_own_cores_are_whole_ones(cpus: float) -> None:
    model = {"name": "chat", "own_cores": True, "num_cpus": cpus}
    with pytest.raises(InvalidField, match=r"models\[0\]\.num_cpus = .* whole number"):
        AppSettings.of({"models": [model]})
