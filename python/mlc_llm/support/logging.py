"""Set-up of the one logger that the whole package writes to."""

from __future__ import annotations

import logging
import sys

LOGGER_NAME = "mlc_llm"


def set_up(*, debug: bool = False) -> None:
    """Send warnings (with `debug`: everything) of this package to standard error.

    For programs: the command line calls it once. A library user sets up `logging` as they like;
    this package adds no handler by being imported. Calling it again only changes the level.
    """
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
        logger.addHandler(handler)
        logger.propagate = False


class _StderrHandler(logging.Handler):
    """Writes to whatever `sys.stderr` is at that moment, so that a replaced stream is respected."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:  # a log line must never take the program down
            self.handleError(record)
