"""Progress: plain lines for a log, a bar for a terminal, silence when asked for."""

from __future__ import annotations

import io
import sys

import pytest

from mlc_llm.support import progress as module
from mlc_llm.support.progress import no_progress, progress, set_quiet


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_start_and_end(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Packing", 10) as shown:
        for _ in range(10):
            shown.advance()
    out, err = capsys.readouterr()
    assert out == ""
    assert [line.split(" in ")[0] for line in err.splitlines()] == [
        "Packing: started",
        "Packing: done",
    ]


def test_a_log_gets_one_line_in_five_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with module._lines("Download", 200e6, "bytes", clock) as shown:
        for _ in range(100):
            clock.now += 0.2
            shown.advance(2e6)
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "Download: 25% (50.0 MB of 200.0 MB)"
    assert len(lines) == 1 + 4 + 1
    assert lines[-1] == "Download: done in 20.0 s"


def test_work_of_unknown_size_shows_no_share(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with module._lines("Compiling", None, "items", clock) as shown:
        clock.now += 6
        shown.advance(3)
    assert "Compiling: 3" in capsys.readouterr().err.splitlines()


def test_a_failure_is_said_and_passed_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyError), progress("Packing", 1):
        raise KeyError("x")
    assert "Packing: not finished" in capsys.readouterr().err


def test_quiet(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    set_quiet(True)
    try:
        with progress("Packing", 1) as shown:
            shown.advance()
    finally:
        set_quiet(False)
    monkeypatch.setenv("MLC_LLM_QUIET", "1")
    with progress("Packing", 1) as shown:
        shown.advance()
    with no_progress("Packing", 1) as shown:
        shown.advance()
    assert capsys.readouterr() == ("", "")


def terminal_shows(monkeypatch: pytest.MonkeyPatch, total: float | None, unit: module.Unit) -> str:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with progress("Packing", total, unit=unit) as shown:
        shown.advance(4)
    return terminal.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("total", "unit", "words"),
    [(4, "items", "4/4"), (4, "bytes", "4/4 bytes"), (None, "items", "0:00:00")],
)
def test_a_terminal_gets_a_bar(
    monkeypatch: pytest.MonkeyPatch, total: float | None, unit: module.Unit, words: str
) -> None:
    shown = terminal_shows(monkeypatch, total, unit)
    assert "Packing" in shown and words in shown
    assert "started" not in shown and "?" not in shown.replace("\x1b[?25", "")
