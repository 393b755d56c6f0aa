"""A stack that is deep enough for whatever strangers write."""

from __future__ import annotations

import threading
from collections.abc import Callable
from threading import Lock, Thread
from typing import TypeVar

STACK_BYTES = 256 * 2**20
"""Address space: memory is taken as far as the stack is used. The library recurses once for each
rule or reference in a row, and a stack that runs over ends the whole process; measured at 10 KB a
level at most, where what a grammar may be long leaves room for a few thousand."""

Result = TypeVar("Result")

_starting = Lock()


def on_deep_stack(work: Callable[[], Result]) -> Result:
    """The result of `work`, done by a thread of its own. Raises what it raises."""
    results: list[Result] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:  # it goes on in the caller
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
