"""An answer as a list of blocks: stretches of thoughts, of text, and calls of tools.

OpenAI's chat chunks put the three side by side. Other APIs (`serve/anthropic`, `serve/responses`)
want one after the other, each with a beginning and an end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Literal, NamedTuple

from mlc_llm.protocol.json_value import JsonValue
from mlc_llm.protocol.messages import arguments_value
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk, check_failure

NOT_PARSED = "unparsed"

Kind = Literal["reasoning", "text", "call"]


class Block:
    """One stretch of an answer."""

    def __init__(self, index: int, kind: Kind, call: CallPiece | None = None) -> None:
        """index: counts the blocks from 0. call: its first piece, for a call."""
        self.index, self.kind = index, kind
        self.call_id = "" if call is None else call.id or ""
        self.name = "" if call is None else call.name or ""
        self.call_index = None if call is None else call.index
        self.logprobs: list[str] = []
        """JSON texts, as in `ChoicePiece`."""
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        """All of it so far. For a call, the JSON text of its arguments."""
        return "".join(self._pieces)

    @property
    def arguments(self) -> dict[str, JsonValue]:
        """Of a call. Arguments that are no JSON object, because the answer was cut, become the
        value of `NOT_PARSED`."""
        value = arguments_value(self.text or "{}")
        return value if isinstance(value, dict) else {NOT_PARSED: self.text}

    def grow(self, text: str, logprobs: list[str] | None = None) -> None:
        """Add the next part."""
        self._pieces.append(text)
        self.logprobs += logprobs or []


class BlockNews(NamedTuple):
    """What has happened to a block."""

    step: Literal["opened", "grew", "closed"]
    block: Block
    text: str = ""
    """What a block that grew has got."""
    logprobs: list[str] | None = None


class Blocks:
    """The blocks of an answer with one choice, made of its chunks."""

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.finish_reason: FinishReason | None = None
        self.stop_str: str | None = None
        """See `ChoicePiece.stop_str`."""
        self._open: Block | None = None

    @property
    def has_calls(self) -> bool:
        """Whether the model has called a tool."""
        return any(block.kind == "call" for block in self.all)

    def of(self, chunk: Chunk) -> Iterator[BlockNews]:
        """Add the next chunk of the answer; what it changes."""
        for piece in chunk.pieces:
            yield from self.put(piece)

    def collect(self, chunk: Chunk, request_id: str) -> None:
        """Add the next chunk of an answer that is wanted as a whole. Raises `RequestError` if the
        request has failed."""
        check_failure(chunk, request_id)
        for _ in self.of(chunk):
            pass

    def put(self, piece: ChoicePiece) -> Iterator[BlockNews]:
        """Add the next piece of the choice. The last one closes the last block."""
        has_words = bool(piece.reasoning or piece.text or piece.calls)
        if piece.reasoning:
            own = None if piece.text else piece.logprobs
            yield from self._grown("reasoning", piece.reasoning, own)
        if piece.text:
            yield from self._grown("text", piece.text, piece.logprobs)
        elif piece.logprobs and not has_words:  # tokens that say nothing, such as marks
            yield from self._grown(self._open.kind if self._open else "text", "", piece.logprobs)
        unsaid = None if piece.text or piece.reasoning else piece.logprobs
        for call in piece.calls:
            yield from self._called(call, unsaid)
            unsaid = None
        if piece.finish_reason is not None:
            self.finish_reason, self.stop_str = piece.finish_reason, piece.stop_str
            yield from self._closed()

    def _grown(
        self, kind: Kind, text: str, logprobs: list[str] | None = None
    ) -> Iterator[BlockNews]:
        block = self._open
        if block is None or block.kind != kind:
            yield from self._closed()
            block = yield from self._opened(Block(len(self.all), kind))
        block.grow(text, logprobs)
        yield BlockNews("grew", block, text, logprobs)

    def _called(self, call: CallPiece, logprobs: list[str] | None) -> Iterator[BlockNews]:
        block = self._open
        if block is None or block.call_index != call.index:
            yield from self._closed()
            block = yield from self._opened(Block(len(self.all), "call", call))
        block.grow(call.arguments, logprobs)
        if call.arguments:
            yield BlockNews("grew", block, call.arguments, logprobs)

    def _opened(self, block: Block) -> Generator[BlockNews, None, Block]:
        self.all.append(block)
        self._open = block
        yield BlockNews("opened", block)
        return block

    def _closed(self) -> Iterator[BlockNews]:
        if self._open is not None:
            yield BlockNews("closed", self._open)
            self._open = None
