"""A stack that is deep enough for every grammar that a user may write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeVar

STACK_BYTES = 256 * 2**20
"""Address space; memory is taken only as far as the stack is used. The library recurses once for
each rule or reference in a row, and a stack overflow ends the whole process. A level takes at most
10 KB (measured), and the longest grammar has a few thousand levels."""

Result = TypeVar("Result")

_starting = Lock()


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """The result of `work`, done on a thread of its own. Raises what `work` raises."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # raised again in the caller
            errors.append(error)

    thread = Thread(target=run, name="mlc-grammar", daemon=True)
    with _starting:
        usual = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual)
    thread.join()
    if errors:
        raise errors[0]
    return results[0]
