"""Turns errors into a line on standard error and an exit code. Only this file does that."""

from __future__ import annotations

import errno
import sys
import traceback
from collections.abc import Callable, Sequence

from mlc_llm.cli.streams import flush_output, forget, say
from mlc_llm.errors import MLCError, UserError
from mlc_llm.support.leaving import INTERRUPTED, say_interrupted

OK = 0
INTERNAL_ERROR = 1
USER_ERROR = 2
BROKEN_PIPE = 141

EXIT_CODES = {
    OK: "all went well",
    INTERNAL_ERROR: "an error that is not your mistake",
    USER_ERROR: "an argument, the input or the model file is wrong",
    INTERRUPTED: "stopped by Ctrl-C",
    BROKEN_PIPE: "the reader of the output has ended",
}


def guarded(work: Callable[[], int], *, debug: bool) -> int:
    """Run `work` and return its exit code. Raises nothing but SystemExit.

    With `debug` it prints the traceback too, before the line.
    """
    try:
        try:
            return work()
        finally:
            flush_output()
    except BrokenPipeError:
        forget(sys.stdout)
        return BROKEN_PIPE
    except KeyboardInterrupt:
        say_interrupted()
        return INTERRUPTED
    except SystemExit:
        raise
    except BaseException as error:  # a panic of a Rust library is not an Exception
        if debug:
            traceback.print_exc()
        say(f"mlc_llm: error: {explain(error, debug=debug)}")
        if isinstance(error, OSError):
            forget(sys.stdout)
        return exit_code(error)


def exit_code(error: BaseException) -> int:
    """The exit code: a mistake of the user, or another error."""
    return USER_ERROR if isinstance(error, UserError) else INTERNAL_ERROR


def explain(error: BaseException, *, debug: bool = False) -> str:
    """One line for the user: what happened and, for our own bugs, how to see more."""
    if isinstance(error, MLCError):
        return one_line(str(error) or type(error).__name__)
    if isinstance(error, MemoryError) or _says(error, _NO_MEMORY):
        return (
            "out of memory; close other programs, raise the limit (ulimit -v), "
            "or use a smaller model or context"
        )
    if _says(error, _NO_THREAD):
        return (
            "no thread can be started; close other programs or raise the limits "
            "(ulimit -u for threads, ulimit -v for memory)"
        )
    if isinstance(error, ImportError):
        return one_line(f"{error}; the install is not complete, see mlc_llm doctor")
    if isinstance(error, OSError) and error.errno in _PLAIN_OS_ERRORS:
        hint = _HINTS.get(error.errno, "")
        return one_line(f"{error.filename or 'writing the output'}: {error.strerror}{hint}")
    more = "" if debug else " (this is a bug; --debug shows where)"
    return one_line(f"{type(error).__name__}: {error}") + more


def _says(error: BaseException, words: Sequence[str]) -> bool:
    """Whether the message of an error has these words. Most libraries have no class for them."""
    return any(word in str(error) for word in words)


_NO_MEMORY = ("Cannot allocate memory", "failed to map segment", "bad_alloc")
_NO_THREAD = ("start new thread", "Resource temporarily unavailable")

_PLAIN_OS_ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.EBADF, errno.EFBIG, errno.EIO),
)
_HINTS = {
    errno.ENOSPC: "; make room, or write to another disk",
    errno.EDQUOT: "; make room, or write to another disk",
    errno.EBADF: "; open it for writing",
}

_LONGEST_LINE = 2000


def one_line(text: str) -> str:
    """`text` without line breaks or control characters, and of limited length."""
    words = " ".join(text.split())
    shown = "".join(char if char.isprintable() else "?" for char in words)
    return shown if len(shown) <= _LONGEST_LINE else shown[:_LONGEST_LINE] + "..."
