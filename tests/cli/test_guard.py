"""Errors become one line and an exit code in one place."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from mlc_llm import errors
from mlc_llm.cli.guard import guarded, one_line


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


class Panic(BaseException):
    """As libraries in Rust raise it."""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.ModelNotFound("no file x"), 2, "no file x"),
        (errors.InvalidField("n", 0, "at least 1"), 2, "n = 0 is not allowed: at least 1"),
        (errors.CompileError("TVM\nsaid no"), 1, "TVM said no"),
        (errors.EngineDead("gone"), 1, "gone"),
        (errors.RequestError(""), 1, "RequestError"),
        (OSError(errno.ENOSPC, "No space left on device"), 1, "writing the output: No space left"),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 1, "f: Permission denied"),
        (ImportError("No module named x"), 1, "No module named x; the install is not complete"),
        (MemoryError(), 1, "out of memory; close other programs"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), 1, "out of memory; close other programs"),
        (RuntimeError("libx.so: failed to map segment"), 1, "out of memory; close other programs"),
        (ImportError("libx.so: failed to map segment"), 1, "out of memory; close other programs"),
        (RuntimeError("can't start new thread"), 1, "no thread can be started; close other"),
        (Panic("pool: Resource temporarily unavailable"), 1, "no thread can be started; close"),
        (KeyError("x"), 1, "KeyError: 'x' (this is a bug; --debug shows where)"),
    ],
)
def test_one_line(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert guarded(raising(error), debug=False) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"mlc_llm: error: {line}")
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(errors.ModelNotFound("no file x")), debug=True) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1] == "mlc_llm: error: no file x"


def test_ctrl_c(capfd: pytest.CaptureFixture[str]) -> None:
    assert guarded(raising(KeyboardInterrupt()), debug=False) == 130
    assert capfd.readouterr() == ("", "mlc_llm: stopped by Ctrl-C\n")


def test_a_full_disk_counts_after_help_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("mlc_llm.cli.guard.flush_output", full)
    monkeypatch.setattr("mlc_llm.cli.guard.forget", lambda stream: None)
    assert guarded(raising(SystemExit(0)), debug=False) == 1


def test_control_characters_and_length() -> None:
    assert one_line("a\x1b[31m\n b") == "a?[31m b"
    assert len(one_line("x" * 10_000)) < 2100
