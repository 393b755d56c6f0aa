"""A lock for an object that serves one thread at a time and makes nobody wait."""

from __future__ import annotations

import os
from threading import RLock
from types import TracebackType

from mlc_llm.errors import UserError, forked


class OneThread:
    """Use it in `with`. One thread may enter, also several times. Another thread gets a `UserError`
    at once, and a process that was forked meanwhile gets an `MLCError`."""

    def __init__(self, refusal: str) -> None:
        self._process = os.getpid()
        self._refusal = refusal
        self._lock = RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            if os.getpid() != self._process:
                raise forked(self._process)  # the thread that has the lock is not in this process
            raise UserError(self._refusal)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
