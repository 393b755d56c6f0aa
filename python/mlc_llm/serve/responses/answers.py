"""The answer of the Responses API: output items, and the object around them."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_responses import UsageInfo
from mlc_llm.serve.openai.blocks import Block, Blocks
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.responses.fields import ResponsesRequest
from mlc_llm.serve.responses.tools import Tools

Status = Literal["in_progress", "completed", "incomplete", "failed"]
Fields = Mapping[str, object]
PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}
"""Kind of a block -> the first letters of its item's id."""


class ResponseAnswer(AnswerModel):
    """A response. Nothing of it is stored."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    status: Status = "in_progress"
    background: bool = False
    error: Mapping[str, str] | None = None
    incomplete_details: Mapping[str, str] | None = None
    instructions: str | None = None
    max_output_tokens: int | None = None
    metadata: Fields = Field(default_factory=dict)
    model: str
    output: list[Fields] = Field(default_factory=list)
    parallel_tool_calls: bool = True
    previous_response_id: None = None
    reasoning: Fields
    store: bool = False
    temperature: float
    text: Fields
    tool_choice: str | Fields = "auto"
    tools: list[Fields] = Field(default_factory=list)
    top_logprobs: int = 0
    top_p: float
    truncation: Literal["disabled"] = "disabled"
    usage: Fields | None = None
    user: str | None = None


class Head:
    """What a response says besides its output."""

    def __init__(
        self, body: ResponsesRequest, request_id: str, model: str, config: GenerationConfig
    ) -> None:
        """model: the served name. config: with the model's defaults, which are shown too."""
        self.request_id, self.tools = request_id, Tools(body.tools or ())
        effort = None if body.reasoning is None else body.reasoning.effort
        reasoning = {"effort": effort, "summary": None}
        self._answer = ResponseAnswer(
            id=request_id,
            created_at=int(time.time()),
            model=model,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata or {},
            parallel_tool_calls=body.parallel_tool_calls is not False,
            reasoning=reasoning,
            temperature=config.temperature,
            text={"format": body.text.format or {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=list(body.tools or ()),
            top_logprobs=body.top_logprobs or 0,
            top_p=config.top_p,
            user=body.user,
        )

    def response(self, status: Status, **more: object) -> ResponseAnswer:
        """more: other fields than those that the request decides."""
        return self._answer.model_copy(update={"status": status, **more})

    def ended(self, blocks: Blocks, usage_json: str) -> ResponseAnswer:
        """The whole answer."""
        status = status_of(blocks)
        items = [self.item(block, "completed") for block in blocks.all[:-1]]
        items += [self.item(block, status) for block in blocks.all[-1:]]
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        usage = _usage(usage_json)
        return self.response(status, output=items, usage=usage, incomplete_details=cut)

    def item(self, block: Block, status: Status) -> dict[str, object]:
        """A block as an output item. One that is in progress has only begun."""
        whole = status != "in_progress"
        head = {"id": item_id(block, self.request_id), "status": status}
        if block.kind == "call":
            arguments = (block.text or "{}") if whole else ""
            call = {"call_id": block.call_id, **self.tools.names(block.name)}
            return {**head, "type": "function_call", **call, "arguments": arguments}
        content = [part(block, whole=True)] if whole else []
        if block.kind == "reasoning":
            return {**head, "type": "reasoning", "summary": [], "content": content}
        return {**head, "type": "message", "role": "assistant", "content": content}


def item_id(block: Block, request_id: str) -> str:
    """The id of a block's item, unique in all responses."""
    return f"{PREFIXES[block.kind]}_{request_id.removeprefix('resp_')}_{block.index}"


def status_of(blocks: Blocks) -> Status:
    """Of an answer, and of its last item. Only the last item of an answer can be cut."""
    return "incomplete" if blocks.finish_reason == "length" else "completed"


def part(block: Block, *, whole: bool) -> dict[str, object]:
    """The content part of a text or of thoughts."""
    text = block.text if whole else ""
    if block.kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    logprobs = parsed(block.logprobs) if whole else []
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def parsed(logprobs: Sequence[str] | None) -> list[object]:
    """Log-probabilities of tokens, as the engine writes them."""
    return [json.loads(token) for token in logprobs or ()]


def _usage(usage_json: str) -> dict[str, object]:
    usage = UsageInfo.model_validate_json(usage_json)
    before, after = usage.prompt_tokens_details, usage.completion_tokens_details
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": before.cached_tokens if before else 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": after.reasoning_tokens if after else 0},
        "total_tokens": usage.total_tokens,
    }


class WholeResponse:
    """Collects a whole answer."""

    def __init__(self, head: Head) -> None:
        self._head, self._blocks, self._usage_json = head, Blocks(), "{}"

    def put(self, _part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if the request failed."""
        self._blocks.collect(chunk, self._head.request_id)
        self._usage_json = chunk.usage_json or self._usage_json

    def response(self) -> ResponseAnswer:
        """The answer; the request must have ended."""
        return self._head.ended(self._blocks, self._usage_json)
