"""The addresses of a host, within a limit of time. The system's own call has none."""

from __future__ import annotations

import queue
import socket
import threading
import time
from typing import TypeAlias

MOST = 16
"""Lookups at a time. One that is given up goes on until the system ends it, and counts so long."""
_free = threading.BoundedSemaphore(MOST)
_Answers: TypeAlias = "queue.SimpleQueue[list[str] | Exception]"


def addresses_of(host: str, port: int, end: float) -> list[str]:
    """All addresses of a host. end: the latest time, of `time.monotonic`.

    Raises `TimeoutError` then, and what `socket.getaddrinfo` raises.
    """
    if not _free.acquire(timeout=_left(end)):
        raise TimeoutError
    answers: _Answers = queue.SimpleQueue()
    thread = threading.Thread(
        target=_ask, args=(host, port, answers), name="image-host", daemon=True
    )
    try:
        thread.start()
    except RuntimeError as error:
        _free.release()
        raise OSError("no thread can be started") from error
    try:
        found = answers.get(timeout=_left(end))
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(found, Exception):
        raise found
    return found


def _ask(host: str, port: int, answers: _Answers) -> None:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        answers.put([str(one[4][0]) for one in found])
    except Exception as error:  # it is raised where somebody waits for it
        answers.put(error)
    finally:
        _free.release()


def _left(end: float) -> float:
    return max(end - time.monotonic(), 0.001)
