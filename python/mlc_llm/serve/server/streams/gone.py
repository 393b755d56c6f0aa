"""Work that ends when its client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from mlc_llm.serve.server.errors import HTTPError

ResultT = TypeVar("ResultT")
GONE = 499
"""The status of a request whose client has gone; nobody reads it."""


async def unless_gone(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of some work, which is cancelled when the client goes. Raises `HTTPError` then.

    The body of the request must have been read.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise HTTPError(GONE, "the client has gone")
        return task.result()
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def until_gone(receive: Receive) -> None:
    """Wait until the client of a request has gone."""
    while (await receive())["type"] != "http.disconnect":
        pass
