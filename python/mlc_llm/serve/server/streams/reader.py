"""The reader of an answer in the server: it knows its place in the engine, and it can fail."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from mlc_llm.serve.async_reader import AsyncReader
from mlc_llm.serve.client import News
from mlc_llm.serve.openai.calls import Part
from mlc_llm.serve.openai.chunks import Chunk


class ServedReader(AsyncReader):
    """An `AsyncReader` whose answer may be ended with an error at any time, by the event loop."""

    def __init__(
        self,
        parts: Sequence[Part],
        abort: Callable[[str], None],
        watch: Callable[[Chunk], None] | None = None,
    ) -> None:
        super().__init__(parts, abort, watch)
        self.error: Exception | None = None
        """Why it was ended; raised behind what has come."""
        self.answer_tokens: int | None = None
        """Of all answers, once they have ended."""
        self._counted = 0
        self._on_first: list[Callable[[], object]] = []
        self._on_end: list[Callable[[], object]] = []

    def when_first(self, call: Callable[[], object]) -> None:
        """Call this at the first chunk."""
        self._on_first.append(call)

    def when_over(self, call: Callable[[], object]) -> None:
        """Call this at the end, whatever it is."""
        self._on_end.append(call)
        if self.is_over:
            self._run(self._on_end)

    def take(self, news: News) -> None:
        """See `AsyncReader`. Behind an error nothing is taken: the end that an abort brings would
        stand in the error's place. Only its tokens count."""
        if self.error is not None:
            if self._watch is not None and news[1].usage_json is not None:
                self._watch(news[1])
            return
        self._run(self._on_first)
        super().take(news)
        usage = news[1].usage_json
        if usage is not None:
            self._counted += int(json.loads(usage).get("completion_tokens", 0))
        if self._open_parts == 0:
            self.answer_tokens = self._counted
            self._run(self._on_end)

    def close(self) -> None:
        """See `AsyncReader`."""
        super().close()
        self._run(self._on_end)

    def fail(self, error: Exception) -> None:
        """End the answer with this error, unless it has ended."""
        if self.is_over:
            return
        self.error = error
        self.close()
        self.nudge()

    def check(self) -> None:
        """Raise the error that has ended it, if nothing is left to read before."""
        if self.error is not None and not self._news:
            raise self.error

    async def _news_come(self) -> None:
        self.check()
        await super()._news_come()
        self.check()

    def _run(self, calls: list[Callable[[], object]]) -> None:
        while calls:
            calls.pop()()
