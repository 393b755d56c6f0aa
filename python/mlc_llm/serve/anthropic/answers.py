"""The whole answer of Anthropic's API."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

from pydantic import Field

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.openai_responses import UsageInfo
from mlc_llm.serve.openai.blocks import Block, Blocks
from mlc_llm.serve.openai.chunks import Chunk

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class MessageUsage(AnswerModel):
    """The tokens of a message. Those that the server has kept are not in `input_tokens`."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    """Always 0: keeping a prompt costs nothing, and is not counted."""
    cache_read_input_tokens: int = 0
    output_tokens: int = 0

    @classmethod
    def of(cls, usage_json: str) -> MessageUsage:
        """Of the engine's usage."""
        usage = UsageInfo.model_validate_json(usage_json)
        details = usage.prompt_tokens_details
        cached = 0 if details is None else details.cached_tokens
        return cls(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


class MessageAnswer(AnswerModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Mapping[str, object]] = Field(default_factory=list)
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    usage: MessageUsage


def ending(blocks: Blocks, stops: Collection[str]) -> tuple[StopReason, str | None]:
    """Why the answer has ended, and the stop string, if it is one of the caller's own."""
    if blocks.finish_reason == "length":
        return "max_tokens", None
    if blocks.stop_str in stops:
        return "stop_sequence", blocks.stop_str
    return "tool_use" if blocks.has_calls else "end_turn", None


def content_block(block: Block) -> dict[str, object]:
    """A block as it stands in a whole answer."""
    if block.kind == "text":
        return {"type": "text", "text": block.text}
    if block.kind == "reasoning":
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    call = {"id": block.call_id, "name": block.name, "input": block.arguments}
    return {"type": "tool_use", **call}


class WholeMessage:
    """Collects a whole answer."""

    def __init__(self, request_id: str, model: str, stops: Collection[str] = ()) -> None:
        """stops: the caller's own stop strings."""
        self._request_id, self._model, self._stops = request_id, model, stops
        self._blocks = Blocks()
        self._usage = MessageUsage()

    def put(self, _part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if the request failed."""
        self._blocks.collect(chunk, self._request_id)
        if chunk.usage_json is not None:
            self._usage = MessageUsage.of(chunk.usage_json)

    def response(self) -> MessageAnswer:
        """The answer; the request must have ended."""
        reason, stop = ending(self._blocks, self._stops)
        return MessageAnswer(
            id=self._request_id,
            model=self._model,
            content=[content_block(block) for block in self._blocks.all],
            stop_reason=reason,
            stop_sequence=stop,
            usage=self._usage,
        )
