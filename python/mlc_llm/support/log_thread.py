"""Writes log lines on a thread of its own: whoever logs never waits for the reader of the log."""

from __future__ import annotations

import io
import logging
import os
import queue
import sys
import threading
import time

MOST_LINES = 10_000
END_S = 1.0
"""At the end of the program, lines that are left have so long to be written."""


class ThreadHandler(logging.Handler):
    """Lines go to the current `sys.stderr`. If nobody reads them, up to `MOST_LINES` wait; later
    ones are dropped, and a line says how many."""

    def __init__(self, most: int = MOST_LINES) -> None:
        super().__init__()
        self._lines: queue.Queue[str] = queue.Queue(most)
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(self.format(record))
        except queue.Full:
            self._dropped += 1

    def flush(self) -> None:
        """Wait until all lines are written, but not for long. `logging` calls it at the end."""
        end = time.monotonic() + END_S
        while self._lines.unfinished_tasks and time.monotonic() < end:
            time.sleep(0.005)

    def _write_all(self) -> None:
        while True:
            line = self._lines.get()
            dropped, self._dropped = self._dropped, 0
            _write(line + "\n")
            if dropped:
                _write(self.format(_dropped(dropped)) + "\n")
            self._lines.task_done()


def _dropped(count: int) -> logging.LogRecord:
    words = "%d lines were dropped"
    return logging.LogRecord("mlc_llm", logging.WARNING, __file__, 0, words, (count,), None)


def _write(text: str) -> None:
    """Without the lock of `sys.stderr`: a thread that holds it at the end of a program kills it."""
    try:
        data, number = text.encode("utf-8", "replace"), sys.stderr.fileno()
    except (io.UnsupportedOperation, AttributeError, ValueError):  # a program has replaced it
        try:
            sys.stderr.write(text)
        except (AttributeError, ValueError):
            return
        return
    while data:
        try:
            data = data[os.write(number, data) :]
        except OSError:  # the reader is gone
            return
