"""`scripts/contract.py`: which tests need which packages, when they are installed, the report."""

from __future__ import annotations

import fcntl
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "contract.py"))


def test_each_test_file_is_in_one_environment() -> None:
    planned = [test for one in SCRIPT["environments"]() for test in one.tests]
    folders = (ROOT / "tests" / "contract", ROOT / "tests" / "page")
    files = [test for one in folders for test in one.glob("test_*.py")]
    assert sorted(planned) == sorted([*files, ROOT / "tests" / "fuzz" / "test_parsers.py"])


def test_versions_are_exact() -> None:
    for one in SCRIPT["environments"]():
        lines = one.requirements.read_text(encoding="utf-8").splitlines()
        wanted = [line for line in lines if not line.startswith("#")]
        assert wanted and all(line.count("==") == 1 for line in wanted), one.name


def test_arguments_choose_files_and_folders() -> None:
    names, more = SCRIPT["split"](["tests/page", "-k", "stream", "-x"])
    assert (names, more) == ([ROOT / "tests" / "page"], ["-k", "stream", "-x"])
    assert SCRIPT["chosen"](names, ROOT / "tests" / "page" / "test_page_chat.py")
    assert not SCRIPT["chosen"](names, ROOT / "tests" / "contract" / "test_llm.py")
    assert SCRIPT["chosen"]([], ROOT / "tests" / "contract" / "test_llm.py")


def test_a_large_environment_is_made_only_by_name() -> None:
    (large,) = [one for one in SCRIPT["environments"]() if one.name == "lm_eval"]
    for names in ([], [ROOT / "tests" / "contract"]):
        (result,) = SCRIPT["results_of"](large, names, [])
        assert result.word == "skipped" and "name the file" in result.details


def test_it_installs_once_for_each_text(tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("a==1", encoding="utf-8")
    count = [sys.executable, "-c", "print(1, file=open('count', 'a'))"]
    for text in ("a==1", "a==1", "a==2"):
        wanted.write_text(text, encoding="utf-8")
        assert SCRIPT["install"](tmp_path, wanted, count) is None
    assert (tmp_path / "count").read_text() == "1\n1\n"


def test_a_failed_install_gives_its_reason_and_is_tried_again(tmp_path: Path) -> None:
    wanted = tmp_path / "wanted.txt"
    wanted.write_text("a==1", encoding="utf-8")
    fail = [sys.executable, "-c", "import sys; sys.exit('no network')"]
    for _ in range(2):
        reason = SCRIPT["install"](tmp_path, wanted, fail)
        assert "could not install wanted.txt" in reason and "no network" in reason


REPORT = """<testsuites><testsuite>
<testcase file="tests/a.py" name="one" /><testcase file="tests/a.py" name="two" />
<testcase file="tests/a.py" name="three"><skipped message="no Chromium" /></testcase>
<testcase name="tests.contract.test_b"><skipped message="needs b" /></testcase>
<testcase file="tests/c.py" name="one"><error message="x" /></testcase>
</testsuite></testsuites>"""


def test_the_report() -> None:
    found = [(one.file, one.word, one.details) for one in SCRIPT["results"](REPORT)]
    assert found == [
        ("tests/a.py", "passed", "2 passed, 1 skipped; no Chromium"),
        ("tests/contract/test_b.py", "skipped", "1 skipped; needs b"),
        ("tests/c.py", "failed", "1 failed"),
    ]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["passed"], 0),
        (["passed", "skipped"], 0),
        (["skipped"], 1),
        (["passed", "failed"], 1),
        ([], 1),
    ],
)
def test_the_exit_status(
    words: list[str], status: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    main = SCRIPT["main"]
    results = [SCRIPT["Result"]("tests/a.py", word, "") for word in words]
    monkeypatch.setitem(main.__globals__, "PLACE", tmp_path)
    monkeypatch.setitem(main.__globals__, "environments", lambda: [None])
    monkeypatch.setitem(main.__globals__, "results_of", lambda *_: results)
    assert main([]) == status
    with (tmp_path / "lock").open("w", encoding="utf-8") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert main([]) == 1
