"""The program in a pseudo-terminal, with the model that echoes."""

from __future__ import annotations

import os
import re
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("there are no pseudo-terminals here", allow_module_level=True)

import fcntl
import pty
import termios

COLUMNS = 40
PATIENCE_S = 100.0
CTRL_D = "\x04"
_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[=>]|\x1b\][^\x07]*\x07")


class Terminal:
    """A person's screen and keys; `seen` is all that came, without codes for colour and cursor."""

    def __init__(self, number: int, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.seen = ""
        self._number = number
        self._raw = b""

    def type(self, text: str) -> None:
        os.write(self._number, text.encode())

    def read_until(self, text: str, *, times: int = 1) -> str:
        """Wait until `text` was shown so often; fails with what is there instead."""
        end = time.monotonic() + PATIENCE_S
        while self.seen.count(text) < times:
            left = end - time.monotonic()
            if left < 0 or not self._more(left):
                pytest.fail(f"{text!r} was not shown {times} times in {self.seen!r}")
        return self.seen

    def read_all(self) -> str:
        """Until the program has ended."""
        while self._more(PATIENCE_S):
            pass
        self.process.wait(PATIENCE_S)
        return self.seen

    def _more(self, seconds: float) -> bool:
        if not select.select([self._number], [], [], seconds)[0]:
            return False
        try:
            piece = os.read(self._number, 65536)
        except OSError:  # what Linux says when the program has gone
            piece = b""
        self._raw += piece
        text = self._raw.decode("utf-8", "ignore")
        self.seen = _CODES.sub("", text).replace("\r\n", "\n")
        return bool(piece)


@contextmanager
def terminal(*args: str, folder: Path, **streams: Any) -> Iterator[Terminal]:
    """`mlc_llm ARGS` at a terminal of COLUMNS columns; `streams` are not the terminal's."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {
        name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")
    }
    environment |= {"TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", "MLC_LLM_HOME": str(folder)}
    with subprocess.Popen(
        [sys.executable, "-m", "mlc_llm", *args, "--model", "mock://echo"],
        **{"stdin": its, "stdout": its, "stderr": its, **streams},
        cwd=folder,
        env=environment,
        start_new_session=True,
    ) as process:
        os.close(its)
        try:
            yield Terminal(ours, process)
        finally:
            process.kill()
            os.close(ours)


TEXT = "The quick brown fox jumps over the lazy dog and runs away."
LINES = "\nThe quick brown fox jumps over the lazy\ndog and runs away.\n"


def test_chat_wraps_at_words_and_saves_what_was_said(tmp_path: Path) -> None:
    with terminal("chat", folder=tmp_path) as screen:
        screen.read_until(">>>")
        screen.type(f"{TEXT}\r")
        screen.read_until(LINES)
        screen.type("/save talk.json\r")
        screen.read_until("saved:")
        screen.type("/set top_p 3\r")
        screen.read_until("error: top_p = 3.0 is not allowed")
        screen.type("/load talk.json\r")
        screen.read_until("loaded: 2 messages")
        screen.type("/exit\r")
        screen.read_all()
    assert screen.process.returncode == 0
    assert TEXT in (tmp_path / "talk.json").read_text()


def test_chat_to_a_pipe_is_not_wrapped(tmp_path: Path) -> None:
    with terminal("chat", folder=tmp_path, stdout=subprocess.PIPE) as screen:
        screen.type(f"{TEXT}\n{CTRL_D}")
        assert screen.process.stdout is not None
        assert screen.process.stdout.read().decode() == f"{TEXT}\n"
        assert screen.process.wait(PATIENCE_S) == 0


def test_a_prompt_at_a_terminal_reads_no_keys(tmp_path: Path) -> None:
    with terminal("generate", TEXT, folder=tmp_path) as screen:
        assert screen.read_all() == f"{TEXT}\n"
    assert screen.process.returncode == 0


def test_a_pipe_is_appended_while_the_answer_goes_to_a_terminal(tmp_path: Path) -> None:
    with terminal("generate", "Sum up:", folder=tmp_path, stdin=subprocess.PIPE) as screen:
        assert screen.process.stdin is not None
        screen.process.stdin.write(b"a text")
        screen.process.stdin.close()
        assert screen.read_all() == "Sum up:\na text\n"


def test_a_dash_reads_keys_until_ctrl_d(tmp_path: Path) -> None:
    with terminal("generate", "-", folder=tmp_path) as screen:
        screen.type(f"one two\n{CTRL_D}")
        screen.read_until("one two\n", times=2)  # what was typed, and the answer
        screen.read_all()
    assert screen.process.returncode == 0


def test_no_prompt_at_a_terminal_is_one_line(tmp_path: Path) -> None:
    with terminal("generate", folder=tmp_path) as screen:
        words = screen.read_all()
    assert words.startswith("mlc_llm: error: there is no prompt; give one")
    assert words.count("\n") == 1
    assert screen.process.returncode == 2


def test_a_mistyped_option_at_a_terminal(tmp_path: Path) -> None:
    with terminal("generate", "--temprature", folder=tmp_path) as screen:
        words = screen.read_all()
    assert "did you mean --temperature? (see mlc_llm generate --help)" in words
    assert words.count("\n") == 1
    assert screen.process.returncode == 2
