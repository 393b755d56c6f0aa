"""A mark that says which thread is at work in something that serves one at a time."""

from __future__ import annotations

from threading import RLock
from types import TracebackType

from mlc_llm.errors import UserError


class OneThread:
    """`with` it: one thread is let in, as often as it likes; another gets a `UserError` at once."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._lock = RLock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            raise UserError(self._refusal)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._lock.release()
