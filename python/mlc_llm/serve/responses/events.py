"""The events of a streamed response."""

from __future__ import annotations

import json
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii

from mlc_llm.serve.openai.blocks import Block, BlockNews, Blocks
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.events import Event
from mlc_llm.serve.responses.answers import (
    Head,
    ResponseAnswer,
    item_id,
    parsed,
    part,
    status_of,
)

NAMES = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
"""Kind of a block -> the first words of the names of its events."""


class ResponseEvents:
    """Makes the numbered events of one response."""

    ping: Event | None = None

    def __init__(self, head: Head) -> None:
        self._head, self._blocks = head, Blocks()
        self._number = 0

    def begin(self) -> Iterator[Event]:
        for name in ("response.created", "response.in_progress"):
            yield self._of_response(name, self._head.response("in_progress"))

    def of(self, _part: int, chunk: Chunk) -> Iterator[Event]:
        for news in self._blocks.of(chunk):
            yield from self._block_events(news)
        if chunk.usage_json is not None:
            answer = self._head.ended(self._blocks, chunk.usage_json)
            yield self._of_response(f"response.{answer.status}", answer)

    def failed(self, status: int, message: str) -> Iterator[Event]:
        """First what the API knows, then an event at which clients raise an error."""
        code = "server_error" if status >= 500 else "invalid_prompt"
        error = {"code": code, "message": message}
        yield self._of_response("response.failed", self._head.response("failed", error=error))
        yield self._event("error", **error, param=None, error={**error, "type": code})

    def _block_events(self, news: BlockNews) -> Iterator[Event]:
        block = news.block
        if news.step == "grew":
            yield self._delta(news)
        elif news.step == "opened":
            begun = self._head.item(block, "in_progress")
            yield self._event("response.output_item.added", output_index=block.index, item=begun)
            if block.kind != "call":
                begun = part(block, whole=False)
                yield self._of_item("response.content_part.added", block, part=begun)
        else:
            yield from self._closed(block)

    def _closed(self, block: Block) -> Iterator[Event]:
        done = f"{NAMES[block.kind]}.done"
        if block.kind == "call":
            arguments = block.text or "{}"
            yield self._of_item(
                done, block, **self._head.tools.names(block.name), arguments=arguments
            )
        else:
            more = {"logprobs": parsed(block.logprobs)} if block.kind == "text" else {}
            yield self._of_item(done, block, text=block.text, **more)
            yield self._of_item("response.content_part.done", block, part=part(block, whole=True))
        is_last = self._blocks.finish_reason is not None
        status = status_of(self._blocks) if is_last else "completed"
        whole = self._head.item(block, status)
        yield self._event("response.output_item.done", output_index=block.index, item=whole)

    def _delta(self, news: BlockNews) -> Event:
        """Joined as text: it is made for every token."""
        block, name = news.block, f"{NAMES[news.block.kind]}.delta"
        head = f'"type": "{name}", "sequence_number": {self._next()}'
        place = f'"item_id": "{item_id(block, self._head.request_id)}"'
        place += f', "output_index": {block.index}'
        if block.kind != "call":
            place += ', "content_index": 0'
        if block.kind == "text":
            place += f', "logprobs": [{", ".join(news.logprobs or ())}]'
        return Event(name, f'{{{head}, {place}, "delta": {encode_basestring_ascii(news.text)}}}')

    def _of_item(self, kind: str, block: Block, /, **fields: object) -> Event:
        place: dict[str, object] = {
            "item_id": item_id(block, self._head.request_id),
            "output_index": block.index,
        }
        if block.kind != "call":
            place["content_index"] = 0
        return self._event(kind, **place, **fields)

    def _of_response(self, name: str, answer: ResponseAnswer) -> Event:
        return self._event(name, response=answer.model_dump())

    def _event(self, kind: str, /, **fields: object) -> Event:
        head = {"type": kind, "sequence_number": self._next()}
        return Event(kind, json.dumps({**head, **fields}))

    def _next(self) -> int:
        self._number += 1
        return self._number - 1
