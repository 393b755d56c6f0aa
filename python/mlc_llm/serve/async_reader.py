"""Carries the chunks of calls from the thread of the engine to tasks of event loops."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Sequence

from mlc_llm.errors import UserError
from mlc_llm.serve.client import EngineClient, News
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.chunks import Chunk


class AsyncReader:
    """The chunks of all parts of one call, for the one task that reads them.

    `take` runs on the event loop. All else may be called from any thread.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        abort: Callable[[str], None],
        watch: Callable[[Chunk], None] | None = None,
    ) -> None:
        """abort: ends the request with this id. watch: is shown each chunk when it comes. There
        must be a running event loop."""
        self.loop = asyncio.get_running_loop()
        self.is_over = False
        self._process = os.getpid()
        self._parts, self._abort, self._watch = parts, abort, watch
        self._open_parts = len(parts)
        self._news: deque[News] = deque()
        self._waiting: asyncio.Future[None] | None = None

    def choices(self, part: int) -> int:
        """How many choices a part of the call has."""
        return self._parts[part].n

    def take(self, news: News) -> None:
        """Add a chunk, and wake the task that waits for one."""
        self._news.append(news)
        if self._watch is not None:
            self._watch(news[1])
        self._open_parts -= news[1].usage_json is not None
        self.is_over = self.is_over or self._open_parts == 0
        self.nudge()

    def nudge(self) -> None:
        """Wake the task that waits. On the event loop only."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """Abort what has not ended. It may be called more than once, and does nothing in a forked
        process."""
        if not self.is_over:
            self.is_over = True
            if os.getpid() != self._process:
                return
            for part in self._parts:
                self._abort(part.request_id)

    async def next_all(self) -> list[News] | None:
        """Wait for a chunk, and return all that have come: nothing after a `nudge`, None after the
        last one."""
        if not self._news:
            if self._open_parts == 0:
                return None
            await self._news_come()
        found = list(self._news)
        self._news.clear()
        return found

    def __aiter__(self) -> AsyncReader:
        return self

    async def __anext__(self) -> News:
        while not self._news:
            if self._open_parts == 0:
                raise StopAsyncIteration
            await self._news_come()
        return self._news.popleft()

    def check_reads_alone(self) -> None:
        """Raises UserError while another task waits for a chunk: both would wait for ever."""
        if self._waiting is not None:
            raise UserError(
                "another task reads this answer; read it in one task, which may hand chunks on"
            )

    async def _news_come(self) -> None:
        self.check_reads_alone()
        self._waiting = self.loop.create_future()
        try:
            await self._waiting
        finally:
            self._waiting = None


def deliver_to_loops(all_news: list[tuple[AsyncReader, News]]) -> None:
    """Wake each event loop once, with all that a step has brought for its readers."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[AsyncReader, News]]] = {}
    for one in all_news:
        by_loop.setdefault(one[0].loop, []).append(one)
    for loop, news in by_loop.items():
        try:
            loop.call_soon_threadsafe(_hand_out, news)
        except RuntimeError:  # the loop is closed: nobody can read any more
            for reader, _ in news:
                reader.close()


def _hand_out(all_news: list[tuple[AsyncReader, News]]) -> None:
    for reader, news in all_news:
        reader.take(news)


AsyncClient = EngineClient[AsyncReader]


async def begin(
    client: AsyncClient, parts: Sequence[Part], watch: Callable[[Chunk], None] | None = None
) -> AsyncReader:
    """Start a call. Templates, tokens and grammars are made on another thread. watch: is shown
    each chunk when it comes."""
    reader = AsyncReader(parts, client.abort, watch)
    try:
        await asyncio.to_thread(client.start, parts, reader)
    except BaseException:
        reader.close()
        raise
    return reader
