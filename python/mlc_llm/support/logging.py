"""Sets up the logger of the package."""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "mlc_llm"


def set_up(*, debug: bool = False) -> None:
    """Write warnings of this package to standard error; with `debug`, all messages.

    The command line calls it once. A program that uses this package as a library sets up `logging`
    itself: importing the package adds no handler. A second call only changes the level.
    """
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which a program may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:  # a log line must never end the program
            self.handleError(record)
