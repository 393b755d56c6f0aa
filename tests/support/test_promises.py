"""Memory promised to running engines: counted until it is touched, or whoever has it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mlc_llm.support import promises
from mlc_llm.support.processes import Process, process_of
from mlc_llm.support.promises import in_words, promise, settle, standing, taken, turn

MB = 2**20
pytestmark = pytest.mark.skipif(not taken(), reason="this system says nothing of processes")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLC_LLM_HOME", str(tmp_path))
    return tmp_path


HOLD = """
import os, sys
from mlc_llm.support.promises import promise, settle
handle = promise("a model", 1000 * 2**20)
settle(handle, 100 * 2**20, {})
if "fork" in sys.argv and os.fork():
    os._exit(0)
print("promised", flush=True)
sys.stdin.readline()
memory = b"x" * (400 * 2**20)
print("touched", flush=True)
sys.stdin.readline()
"""


@contextmanager
def other(*words: str) -> Iterator[subprocess.Popen[str]]:
    """Another process with 1000 MB promised, 100 MB of them touched; it touches 400 MB more when
    it is told a line."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == "promised\n"
            yield process
        finally:
            process.kill()


def untouched() -> int:
    return sum(one.untouched for one in standing().values())


def notes(home: Path) -> list[str]:
    return [path.name for path in (home / "engines").iterdir() if path.name != "turn.lock"]


def test_what_another_process_has_touched_is_not_counted_twice() -> None:
    with other() as process:
        assert process.stdin is not None and process.stdout is not None
        (found,) = standing().values()
        assert found.total == 1000 * MB and found.untouched == pytest.approx(900 * MB, abs=20 * MB)
        said = f"MB to a model (process {process.pid})"
        assert in_words([found]).startswith("promised to others: ") and said in in_words([found])
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "touched\n"
        assert untouched() == pytest.approx(500 * MB, abs=20 * MB)


def test_a_killed_process_has_nothing(home: Path) -> None:
    with other() as process:
        assert untouched()
        process.kill()
        process.wait()
        assert standing() == {} and notes(home) == []


def test_a_child_that_was_left_behind_holds_nothing() -> None:
    with other("fork") as process:
        process.wait()
        assert standing() == {}


def test_a_process_that_ends_well_leaves_nothing(home: Path) -> None:
    held = promise("a model", 5 * MB)
    assert untouched() == 5 * MB and len(notes(home)) == 2
    held.release()
    held.release()
    assert standing() == {} and notes(home) == []


def test_a_forked_copy_ends_no_promise(monkeypatch: pytest.MonkeyPatch) -> None:
    held = promise("a model", 5 * MB)
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        held.release()
    assert untouched() == 5 * MB
    held.release()


def test_engines_of_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    own = process_of(os.getpid())
    assert own is not None

    def left(megabytes: int) -> dict[str, int]:
        """What is untouched when the process has taken so much."""
        process = Process(own.start, megabytes * MB)
        monkeypatch.setattr(promises, "process_of", lambda pid: process)
        return {one.model: one.untouched // MB for one in standing().values()}

    first = promise("a", 100 * MB)
    assert left(1000) == {"a": 100}, "it opens"
    settle(first, 20 * MB, {})
    assert left(1000) == {"a": 80} and left(1030) == {"a": 50} and left(9) == {"a": 80}
    left(1030)
    before, second = standing(), promise("b", 100 * MB)
    left(1500)  # imports, the compiler, weights
    settle(second, 40 * MB, before)
    assert left(1500) == {"a": 50, "b": 60}
    assert sum(left(1570).values()) == 40 and sum(left(5000).values()) == 0
    first.release()
    assert left(1500) == {"b": 60}
    second.release()


@pytest.mark.parametrize(
    ("field", "value", "counted"),
    [
        ("namespace", "pid:[1]", 5 * MB),  # another container, whose processes cannot be seen
        ("machine", "another", 0),  # with the same home folder
        ("start", "1", 0),  # a later process of the same number
        ("left", "many", 0),
    ],
)
def test_notes_of_others(field: str, value: str, counted: int, home: Path) -> None:
    held = promise("a model", 5 * MB)
    (path,) = (home / "engines").glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), field: value}))
    assert untouched() == counted
    path.write_text("{")
    assert standing() == {}
    held.release()


def test_a_cache_that_cannot_be_written(home: Path) -> None:
    (home / "engines").write_text("a file in the way")
    with turn():
        held = promise("a model", 5 * MB)
        assert standing() == {}
    held.release()


def test_words_name_the_largest() -> None:
    many = [promises.Promise(f"m{n}", n, 0, n * MB) for n in range(6)]
    assert in_words(many) == (
        "promised to others: 5 MB to m5 (process 5), 4 MB to m4 (process 4), "
        "3 MB to m3 (process 3), 3 MB to 2 other engines"
    )
    assert in_words([]) == in_words(many[:1]) == ""
