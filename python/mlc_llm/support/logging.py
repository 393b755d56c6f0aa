"""Sets up the logger of the package."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Literal

LOGGER_NAME = "mlc_llm"
ACCESS = "mlc_llm.access"
"""The logger of a server's requests: a line each."""
LogFormat = Literal["text", "json", "off"]
TEXT = "%(levelname)s %(name)s: %(message)s"


def set_up(*, debug: bool = False) -> None:
    """Write warnings of this package to standard error; with `debug`, all messages.

    The command line calls it once. A program that uses this package as a library sets up `logging`
    itself: importing the package adds no handler. A second call only changes the level.
    """
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.DEBUG if debug else logging.WARNING)
    if not any(isinstance(handler, _StderrHandler) for handler in logger.handlers):
        handler = _StderrHandler()
        handler.setFormatter(logging.Formatter(TEXT))
        logger.addHandler(handler)
        logger.propagate = False


def set_up_access(form: LogFormat) -> None:
    """A server's requests are logged as text, or not at all; as JSON, all lines are. Nobody who
    logs waits for the reader of the log any more, neither here nor in other packages.

    It follows `set_up`. A second call changes the form.
    """
    from mlc_llm.support.log_thread import ThreadHandler

    root, package, access = map(logging.getLogger, (None, LOGGER_NAME, ACCESS))
    access.setLevel(logging.WARNING if form == "off" else logging.INFO)
    access.propagate = False
    handler = next((one for one in access.handlers if isinstance(one, ThreadHandler)), None)
    if handler is None:
        handler = ThreadHandler()
        package.handlers = [one for one in package.handlers if not isinstance(one, _StderrHandler)]
        for logger in (access, package, *([] if root.handlers else [root])):
            logger.addHandler(handler)
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))


class JsonFormatter(logging.Formatter):
    """A record as one line of JSON: `time` (RFC 3339, UTC), `level`, `logger`, `message`, and the
    record's own `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, object] = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, "fields", {}))
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class _StderrHandler(logging.Handler):
    """Writes to the current `sys.stderr`, which a program may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr)
        except Exception:  # a log line must never end the program
            self.handleError(record)
