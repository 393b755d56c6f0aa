"""Two replicas of a real model on Ray Serve, each on a core of its own (`own_cores`)."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_app import LONGEST_S, Application, application

from mlc_llm.testing.tiny_model import write_tiny_model

openai: Any = pytest.importorskip("openai", reason="needs `pip install openai`")
pytest.importorskip("ray", reason="needs the extra `ray`")

CORES = os.sched_getaffinity(0) if sys.platform == "linux" else set()
pytestmark = pytest.mark.skipif(len(CORES) < 2, reason="needs Linux and two cores")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def app(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    """Ray is told of more cores than the test needs, so that the ingress has room on two."""
    given = {"name": "tiny", "model": str(model), "replicas": 2, "num_cpus": 1}
    given |= {"own_cores": True, "health_check_s": 0.5, "resume": "replica"}
    given |= {"engine_config": {"max_num_sequence": 4}}
    home = str(tmp_path_factory.mktemp("home"))
    seen = {"MLC_LLM_HOME": home, "RAY_OVERRIDE_RESOURCES": '{"CPU": 8}'}
    with application(openai.OpenAI, tmp_path_factory.mktemp("ray"), given, seen) as found:
        yield found


def bound(process: int) -> set[frozenset[int]]:
    """The cores of its threads that may not run everywhere, as the system tells them."""
    threads = [int(one.name) for one in Path(f"/proc/{process}/task").iterdir()]
    found = {frozenset(os.sched_getaffinity(one)) for one in threads}
    return {one for one in found if one != CORES}


def replicas(app: Application, gone: int = 0) -> dict[int, set[frozenset[int]]]:
    """Both of them, when both compute on cores of their own and answer: whoever kills one before
    the other answers leaves no replica. gone: one that was killed."""
    end = time.monotonic() + LONGEST_S
    while True:
        assert time.monotonic() < end, "no two replicas with cores"
        if b"\nreplicas_answering 2\n" not in app.get("/metrics"):
            time.sleep(0.2)
            continue
        try:
            found = {one: bound(one) for one in app.replicas() if one != gone}
        except OSError:  # a process or a thread has ended meanwhile
            continue
        if len(found) == 2 and all(found.values()):
            return found
        time.sleep(0.2)


def text(app: Application) -> str:
    found = app.client.completions.create(
        model="tiny", prompt="abc", max_tokens=20, temperature=0, timeout=LONGEST_S
    )
    assert found.usage.completion_tokens > 0
    return str(found.choices[0].text)


def test_each_replica_computes_on_a_core_of_its_own(app: Application) -> None:
    first, second = replicas(app).values()
    assert len(first) == len(second) == 1 and not first & second
    assert all(len(one) == 1 for one in first | second)
    assert len({text(app) for _ in range(6)}) == 1


def test_the_core_of_a_killed_replica_becomes_free(app: Application) -> None:
    before = replicas(app)
    killed, kept = before
    os.kill(killed, signal.SIGKILL)
    after = replicas(app, killed)
    (new,) = set(after) - set(before)
    assert after[kept] == before[kept] and after[new] == before[killed]
    assert text(app)


def test_a_replica_whose_model_does_not_open_keeps_no_core(app: Application, model: Path) -> None:
    """Replicas fail while the file is away. When it is back, one has the core again."""
    before = replicas(app)
    killed, kept = before
    away = model.rename(model.with_suffix(".away"))
    os.kill(killed, signal.SIGKILL)
    failed: set[int] = set()
    end = time.monotonic() + LONGEST_S
    while len(failed) < 3:  # two that have gone, and one that comes
        assert time.monotonic() < end, failed
        failed |= set(app.replicas()) - set(before)
        assert text(app)
        time.sleep(0.1)
    away.rename(model)
    after = replicas(app, killed)
    (new,) = set(after) - set(before)
    assert after[kept] == before[kept] and after[new] == before[killed]
