"""The one place where errors become a line on standard error and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable

from mlc_llm.errors import MLCError, UserError
from mlc_llm.support.leaving import INTERRUPTED, say_interrupted

OK = 0
INTERNAL_ERROR = 1
USER_ERROR = 2
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "all went well",
    INTERNAL_ERROR: "something failed that is not your mistake",
    USER_ERROR: "an argument, the input or the model file is wrong",
    INTERRUPTED: "stopped by Ctrl-C",
    BROKEN_PIPE: "the reader of the output went away",
}


def guarded(work: Callable[[], int], *, debug: bool) -> int:
    """Run `work` and return its exit code; no exception but SystemExit comes out.

    With `debug` the traceback is printed too, before the line.
    """
    try:
        code = work()
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        _forget_stdout()
        return BROKEN_PIPE
    except KeyboardInterrupt:
        say_interrupted()
        return INTERRUPTED
    except Exception as error:
        if debug:
            traceback.print_exc()
        print(f"mlc_llm: error: {explain(error, debug=debug)}", file=sys.stderr)
        return exit_code(error)


def exit_code(error: Exception) -> int:
    """Whose mistake it was."""
    return USER_ERROR if isinstance(error, UserError) else INTERNAL_ERROR


def explain(error: Exception, *, debug: bool = False) -> str:
    """One line for a person: what happened and, for our own bugs, how to see more."""
    if isinstance(error, MLCError):
        return one_line(str(error) or type(error).__name__)
    if isinstance(error, MemoryError):
        return "out of memory; close other programs or use a smaller model or context"
    if isinstance(error, ImportError):
        return one_line(f"{error}; the install is not complete, see mlc_llm doctor")
    if isinstance(error, OSError) and error.errno in _PLAIN_OS_ERRORS:
        return one_line(f"{error.filename or 'writing the output'}: {error.strerror}")
    more = "" if debug else " (this is a bug; --debug shows where)"
    return one_line(f"{type(error).__name__}: {error}") + more


_PLAIN_OS_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)

_LONGEST_LINE = 2000


def one_line(text: str) -> str:
    """`text` without line breaks or control characters, and of bounded length."""
    words = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "?" for char in words)
    return shown if len(shown) <= _LONGEST_LINE else shown[:_LONGEST_LINE] + "..."


def _forget_stdout() -> None:
    """Let nothing be written at exit: the pipe is gone and Python would complain."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(devnull, sys.stdout.fileno())
    except (OSError, ValueError):  # a replaced stream without a descriptor has nothing to forget
        pass
    finally:
        os.close(devnull)
