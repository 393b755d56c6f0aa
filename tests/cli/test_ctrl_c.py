"""Ctrl-C while a command starts: exit code 130 and one line, wherever it stands."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

LINE = b"mlc_llm: stopped by Ctrl-C\n"

AT_AN_IMPORT = """
import builtins, os, runpy, signal, sys

left = int(sys.argv.pop(1))
presses = int(sys.argv.pop(1))

class Press:
    @staticmethod
    def find_spec(name, path=None, target=None):
        global left
        left -= 1
        if left == 0 or (left == -1 and presses == 2):
            os.kill(os.getpid(), signal.SIGINT)

from mlc_llm.support import leaving  # from its end on Ctrl-C is the program's

sys.meta_path.insert(0, Press)
sys.argv[0] = "mlc_llm"
runpy.run_module("mlc_llm", run_name="__main__")
"""
"""Runs the program and presses Ctrl-C at an import, by its number."""


def start(
    at: int, *, presses: int = 1, ignored: bool = False
) -> subprocess.CompletedProcess[bytes]:
    command = ["generate", "Hi", "--model", "mock://echo"]

    def handle() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.SIG_DFL)

    return subprocess.run(
        [sys.executable, "-c", AT_AN_IMPORT, str(at), str(presses), *command],
        capture_output=True,
        check=False,
        timeout=60,
        preexec_fn=handle,
    )


@pytest.mark.parametrize("at", [6, 20, 60, 100, 140, 180, 220, 260])
def test_at_an_import(at: int) -> None:
    done = start(at)
    assert (done.returncode, done.stderr, done.stdout) == (130, LINE, b"")


def test_a_second_one_changes_nothing() -> None:
    done = start(100, presses=2)
    assert (done.returncode, done.stderr, done.stdout) == (130, LINE, b"")


def test_where_the_parent_ignores_it_it_stays_ignored() -> None:
    done = start(100, ignored=True)
    assert (done.returncode, done.stderr, done.stdout) == (0, b"", b"Hi\n")


IN_A_FOLDER = """
import os, signal, sys
from pathlib import Path
from mlc_llm.support.files import new_file, new_folder
from mlc_llm.support.leaving import leave_on_interrupt

leave_on_interrupt()
with new_folder(Path(sys.argv[1])) as folder, new_file(Path(sys.argv[1]) / "file") as file:
    (folder / "part").write_text("x")
    assert file.exists()
    os.kill(os.getpid(), int(sys.argv[2]))
    print("never")
"""


def half_made(tmp_path: Path, number: signal.Signals) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", IN_A_FOLDER, str(tmp_path), str(int(number))],
        capture_output=True,
        check=False,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL) and None,
    )


def test_half_made_files_do_not_stay(tmp_path: Path) -> None:
    done = half_made(tmp_path, signal.SIGINT)
    assert (done.returncode, done.stderr, done.stdout) == (130, LINE, b"")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nor_after_the_signals_of_supervisors_and_terminals(
    number: signal.Signals, tmp_path: Path
) -> None:
    """The program ends by the signal itself, as its parent expects."""
    done = half_made(tmp_path, number)
    assert (done.returncode, done.stderr, done.stdout) == (-number, b"", b"")
    assert list(tmp_path.iterdir()) == []


IN_TURN = """
import signal, sys
from mlc_llm.support.leaving import leave_on_interrupt, undone

numbers = (signal.SIGTERM, signal.SIGHUP)
signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as of nohup
if len(sys.argv) == 2:
    leave_on_interrupt()
before = list(map(signal.getsignal, numbers))
with undone(print), undone(print):
    inside = list(map(signal.getsignal, numbers))
    with undone(print):
        assert list(map(signal.getsignal, numbers)) == inside
    assert list(map(signal.getsignal, numbers)) == inside
assert list(map(signal.getsignal, numbers)) == before
assert inside[1] == signal.SIG_IGN
assert (inside == before) == (len(sys.argv) == 1)
"""


@pytest.mark.parametrize("arguments", [[], ["a command"]])
def test_only_a_command_with_something_to_undo_takes_them(arguments: list[str]) -> None:
    """A program that uses the package has handlers of its own."""
    subprocess.run([sys.executable, "-c", IN_TURN, *arguments], check=True)
