"""The events of a streamed answer of Anthropic's API."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from json.encoder import encode_basestring_ascii

from mlc_llm.serve.anthropic.answers import MessageAnswer, MessageUsage, content_block, ending
from mlc_llm.serve.anthropic.errors import error_body
from mlc_llm.serve.openai.blocks import Block, BlockNews, Blocks
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.events import Event
from mlc_llm.serve.openai.prompt_size import PromptSize

DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "call": ("input_json_delta", "partial_json"),
}
"""Kind of a block -> type of its deltas, and the key of their text."""


class MessageEvents:
    """Makes the events of one message: its start, its blocks, its stop reason and its end."""

    ping: Event | None = Event("ping", '{"type": "ping"}')

    def __init__(
        self, request_id: str, model: str, size: PromptSize, stops: Collection[str] = ()
    ) -> None:
        """stops: the caller's own stop strings."""
        self._request_id, self._model, self._size = request_id, model, size
        self._stops = stops
        self._blocks = Blocks()
        self._has_begun = False

    def begin(self) -> Iterator[Event]:
        """The start, if the prompt is tokenised already. Which tokens the server has kept is not
        known yet: all count as input."""
        if self._size.tokens:
            yield self._start()

    def _start(self) -> Event:
        self._has_begun = True
        usage = MessageUsage(input_tokens=self._size.tokens)
        message = MessageAnswer(id=self._request_id, model=self._model, usage=usage)
        return _event("message_start", message=message.model_dump())

    def of(self, _part: int, chunk: Chunk) -> Iterator[Event]:
        if not self._has_begun:
            yield self._start()
        for news in self._blocks.of(chunk):
            yield from _block_events(news)
        if chunk.usage_json is not None:
            reason, stop = ending(self._blocks, self._stops)
            delta = {"stop_reason": reason, "stop_sequence": stop}
            usage = MessageUsage.of(chunk.usage_json).model_dump()
            yield _event("message_delta", delta=delta, usage=usage)
            yield _event("message_stop")

    def failed(self, status: int, message: str) -> Iterator[Event]:
        yield Event("error", json.dumps(error_body(status, message)))


def _block_events(news: BlockNews) -> Iterator[Event]:
    block = news.block
    if news.step == "grew":
        if news.text:
            kind, key = DELTAS[block.kind]
            yield _delta(block, kind, key, news.text)
        return
    if news.step == "opened":
        yield _event("content_block_start", index=block.index, content_block=content_block(block))
        return
    if block.kind == "reasoning":
        yield _delta(block, "signature_delta", "signature", "")
    yield _event("content_block_stop", index=block.index)


def _delta(block: Block, kind: str, key: str, text: str) -> Event:
    """Joined as text: it is made for every token."""
    delta = f'{{"type": "{kind}", "{key}": {encode_basestring_ascii(text)}}}'
    data = f'{{"type": "content_block_delta", "index": {block.index}, "delta": {delta}}}'
    return Event("content_block_delta", data)


def _event(name: str, **fields: object) -> Event:
    return Event(name, json.dumps({"type": name, **fields}))
