"""Shows the progress of long work: a bar on a terminal, plain lines in a log, or nothing.

Everything goes to standard error, so standard output has only the answer.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Literal, Protocol, TextIO

from mlc_llm.support.leaving import undone

LINE_INTERVAL_S = 5.0
"""A log gets at most one line in this time, not counting the first and the last."""

Unit = Literal["items", "bytes"]


class Progress(Protocol):
    """Is told how much is done."""

    def advance(self, n: float = 1) -> None:
        """`n` more items (or bytes) are done."""


ProgressFactory = Callable[[str, "float | None"], AbstractContextManager[Progress]]
"""The type of `progress` arguments: `progress`, `no_progress` or a caller's own function."""

_quiet = False


def set_quiet(quiet: bool) -> None:
    """Switch all progress of this process off (or on again). `MLC_LLM_QUIET=1` does the same."""
    global _quiet  # noqa: PLW0603 - one switch for the process, like a log level
    _quiet = quiet


def is_quiet() -> bool:
    """Whether this process shows no progress."""
    return _quiet or os.environ.get("MLC_LLM_QUIET", "0") not in ("", "0")


@contextmanager
def progress(label: str, total: float | None, *, unit: Unit = "items") -> Iterator[Progress]:
    """Show `label` and how much of `total` is done. total None: the total is not known.

    If the block raises, the log says that the work did not finish.
    """
    with _chosen(label, total, unit) as shown:
        yield shown


@contextmanager
def no_progress(label: str, total: float | None) -> Iterator[Progress]:
    """Like `progress`, but shows nothing."""
    yield _Silent()


def _chosen(label: str, total: float | None, unit: Unit) -> AbstractContextManager[Progress]:
    if is_quiet():
        return no_progress(label, total)
    if _is_terminal(sys.stderr):
        return _bar(label, total, unit)
    return _lines(label, total, unit)


def _is_terminal(stream: TextIO) -> bool:
    return stream.isatty() and os.environ.get("TERM") != "dumb"


class _Silent:
    def advance(self, n: float = 1) -> None:
        pass


class _Lines:
    """Plain lines for a log, at most one every LINE_INTERVAL_S."""

    def __init__(
        self, label: str, total: float | None, unit: Unit, clock: Callable[[], float]
    ) -> None:
        self._label, self._total, self._unit, self._clock = label, total, unit, clock
        self._done = 0.0
        self._started = self._last = clock()

    def advance(self, n: float = 1) -> None:
        self._done += n
        now = self._clock()
        if now - self._last >= LINE_INTERVAL_S:
            self._last = now
            self.say(self._so_far())

    def say(self, words: str) -> None:
        with suppress(OSError):  # the work goes on if standard error is closed
            print(f"{self._label}: {words}", file=sys.stderr, flush=True)

    def elapsed(self) -> str:
        return f"{self._clock() - self._started:.1f} s"

    def _so_far(self) -> str:
        done = _amount(self._done, self._unit)
        if not self._total:
            return done
        share = min(100, int(100 * self._done / self._total))
        return f"{share}% ({done} of {_amount(self._total, self._unit)})"


@contextmanager
def _lines(
    label: str, total: float | None, unit: Unit, clock: Callable[[], float] = time.monotonic
) -> Iterator[Progress]:
    lines = _Lines(label, total, unit, clock)
    lines.say("started")
    try:
        yield lines
    except BaseException:
        lines.say(f"not finished, stopped after {lines.elapsed()}")
        raise
    lines.say(f"done in {lines.elapsed()}")


class _Bar:
    """One task of a rich progress display."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        self._advance = advance

    def advance(self, n: float = 1) -> None:
        self._advance(n)


@contextmanager
def _bar(label: str, total: float | None, unit: Unit) -> Iterator[Progress]:
    # The import takes a tenth of a second, and only terminals need it.
    from rich import progress as bars
    from rich.console import Console

    columns = [bars.TextColumn("{task.description}"), bars.BarColumn()]
    if unit == "bytes":
        columns.append(bars.DownloadColumn())
    elif total is not None:
        columns.append(bars.MofNCompleteColumn())
    columns.append(bars.TimeElapsedColumn())
    with undone(_show_cursor), bars.Progress(*columns, console=Console(stderr=True)) as display:
        task = display.add_task(label, total=total)
        yield _Bar(lambda n: display.advance(task, n))


def _show_cursor() -> None:
    """Show the terminal's cursor, which a bar hides."""
    os.write(2, b"\x1b[?25h")


def _amount(n: float, unit: Unit) -> str:
    if unit == "items":
        return f"{n:g}"
    return f"{n / 1e6:.1f} MB" if n >= 1e5 else f"{n / 1e3:.1f} kB"
