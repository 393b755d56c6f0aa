"""Standard streams that are closed or full: one line that says what to do, and no bug."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(shutil.which("sh") is None, reason="needs a shell")

CLOSED = "mlc_llm: error: standard output is closed; send it to a file, a pipe or /dev/null\n"


def run(redirected: str, *args: str) -> subprocess.CompletedProcess[str]:
    """Run the program with the shell's words for its streams."""
    words = " ".join(f'"{word}"' for word in (sys.executable, "-m", "mlc_llm", *args))
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f"{words} {redirected}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=environment,
    )


ECHO = ("generate", "--model", "mock://echo", "Hi")


@pytest.mark.parametrize("command", [ECHO, ("doctor",), ("generate", "--nothing")])
def test_closed_output(command: tuple[str, ...]) -> None:
    done = run(">&-", *command)
    if "--nothing" in command:
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    else:
        assert (done.returncode, done.stderr) == (1, CLOSED)


def test_closed_errors_do_not_become_output() -> None:
    done = run("2>&-", *ECHO)
    assert (done.returncode, done.stdout) == (0, "Hi\n")
    done = run("2>&-", "generate", "")
    assert (done.returncode, done.stdout) == (2, "")


def test_a_closed_stream_is_no_place_for_the_next_file(tmp_path: Path) -> None:
    code = (
        "import os, sys; from mlc_llm.cli.streams import occupy_closed_streams as occupy; "
        "occupy(); print(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT) > 2)"
    )
    words = f'"{sys.executable}" -c "{code}" "{tmp_path / "file"}"'
    for closed in ("<&-", "2>&-", "<&- 2>&-"):
        done = subprocess.run(["sh", "-c", f"{words} {closed}"], capture_output=True, check=True)
        assert done.stdout == b"True\n"


def test_closed_input_is_an_empty_prompt() -> None:
    done = run("<&-", "generate")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "the prompt is empty" in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
class TestFullDisk:
    @pytest.mark.parametrize("command", [ECHO, ("doctor",)])
    def test_output(self, command: tuple[str, ...]) -> None:
        done = run(">/dev/full", *command)
        assert done.returncode == 1
        assert done.stderr.startswith("mlc_llm: error: writing the output: No space left on device")
        assert "make room" in done.stderr
        assert done.stderr.count("\n") == 1

    def test_errors(self) -> None:
        assert run("2>/dev/full", "generate", "").returncode == 2
        done = run("2>/dev/full", *ECHO, "--stats")
        assert (done.returncode, done.stdout) == (0, "Hi\n")
