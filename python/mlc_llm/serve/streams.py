"""Carries items from the one callback of an engine to the readers of the requests, by request id.

There is no lock that a fork could copy while it is held. Each step is one operation on a dictionary
or a queue, which any thread may do at any time.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

from mlc_llm.errors import InvalidField, forked

Item = TypeVar("Item")
StreamT = TypeVar("StreamT")


class IdInUse(InvalidField):
    """Another request with this id is running."""


class OpenStreams(Generic[StreamT]):
    """The streams of the requests that have not ended, by request id."""

    def __init__(self) -> None:
        self._streams: dict[str, StreamT] = {}
        self.find: Callable[[str], StreamT | None] = self._streams.get
        """The stream of the running request with this id, or None. It is called for every token."""

    def open(self, request_id: str, stream: StreamT) -> None:
        """Add a stream. Raises `IdInUse` while another stream has this id."""
        if self._streams.setdefault(request_id, stream) is not stream:
            raise IdInUse("request_id", request_id, "it is in use: it names a request that runs")

    def take(self, request_id: str) -> StreamT | None:
        """Remove the stream that has this id and return it. None if there is none."""
        return self._streams.pop(request_id, None)

    def leave(self, request_id: str, stream: StreamT) -> None:
        """Remove this stream, unless another stream has the id by now."""
        if self._streams.get(request_id) is stream:
            del self._streams[request_id]

    def ids(self) -> list[str]:
        """The ids that are in use."""
        return list(self._streams)

    def __len__(self) -> int:
        return len(self._streams)


class RequestStream(Generic[Item]):
    """The items of one request, for the one thread that reads them.

    Iterating waits for each item, up to the end. `close` aborts the request if it has not ended;
    the end of a `with` block does the same. After the end it does nothing. In a forked process
    nothing comes: there iterating raises MLCError, and `close` does nothing.
    """

    def __init__(self, request_id: str, abort: Callable[[str], object]) -> None:
        """`abort` ends the request with this id. It is called at most once."""
        self.queue: queue.Queue[Item | None] = QueueInC()
        """Items that nobody has read yet. None means the end."""
        self.put: Callable[[Item], None] = self.queue.put_nowait
        """Give the reader one more item. Never waits."""
        self._process = os.getpid()
        self._items: Iterator[Item] = iter(partial(_get, self.queue, self._process), None)
        self._request_id = request_id
        self._abort = abort
        self._is_over = False

    @property
    def is_over(self) -> bool:
        """It has all items, or it was closed."""
        return self._is_over

    def end(self, *last: Item) -> None:
        """Give the reader the last items. Nothing comes after them."""
        self._is_over = True
        for item in (*last, None):
            self.queue.put_nowait(item)

    def close(self) -> None:
        """Abort the request. Nobody reads the items that still come."""
        if not self._is_over:
            self._is_over = True
            if os.getpid() == self._process:
                self._abort(self._request_id)

    def __iter__(self) -> Iterator[Item]:
        return self._items

    def __enter__(self) -> RequestStream[Item]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _get(items: queue.Queue[Item | None], process: int) -> Item | None:
    """The next item. It is no method: a stream that nobody uses has to end at once."""
    if os.getpid() != process:
        raise forked(process)
    return items.get()


class QueueInC(queue.Queue[Item]):
    """A queue without a limit that waits in C, not in Python: its reader wakes for every token
    while the model uses all cores."""

    def __init__(self) -> None:
        super().__init__()
        items: queue.SimpleQueue[Item] = queue.SimpleQueue()
        for name in ("put", "put_nowait", "get", "get_nowait", "qsize", "empty"):
            setattr(self, name, getattr(items, name))
