"""A request of the Responses API as a chat request."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.openai_api_protocol import REASONING_EFFORTS, ChatCompletionRequest
from mlc_llm.serve.openai.translated import Translated
from mlc_llm.serve.responses.fields import LOGPROBS, ResponsesRequest
from mlc_llm.serve.responses.items import Conversation
from mlc_llm.serve.responses.tools import Tools

FORMATS = ("text", "json_object", "json_schema")

Given = Mapping[str, object]


def translated(body: ResponsesRequest, model: str) -> Translated[ChatCompletionRequest]:
    """model: the served name. Raises `UserError` that names the field of `body`."""
    conversation = Conversation()
    if body.instructions is not None:
        conversation.say("system", body.instructions)
    if isinstance(body.input, str):
        conversation.say("user", body.input)
    else:
        for i, item in enumerate(body.input):
            conversation.put(f"input[{i}]", item)
    if not conversation.messages:
        raise InvalidField("input", "...", "there is nothing in it that the model can read")
    tools = Tools(body.tools or ())
    fields: dict[str, object] = {
        "model": model,
        "messages": [_with_content(one) for one in conversation.messages],
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        "temperature": body.temperature,
        "top_p": body.top_p,
        "logprobs": wants_logprobs(body),
        "top_logprobs": body.top_logprobs,
        "response_format": _format(body.text.format),
        "parallel_tool_calls": body.parallel_tool_calls,
        "reasoning_effort": _effort(body),
        **tools.fields(body.tool_choice),
    }
    dropped = [*conversation.dropped, *tools.dropped]
    ignored = [*body.unknown_fields(), *dropped, *_without_effect(body)]
    return Translated(ChatCompletionRequest.parse(fields), ignored, ["reasoning.effort"])


def wants_logprobs(body: ResponsesRequest) -> bool:
    """Whether the answer has log-probabilities."""
    return LOGPROBS in body.include or bool(body.top_logprobs)


def _effort(body: ResponsesRequest) -> str | None:
    effort = None if body.reasoning is None else body.reasoning.effort
    if effort is None:
        return None
    return checks.one_of("reasoning.effort", effort, REASONING_EFFORTS)


def _with_content(message: dict[str, object]) -> dict[str, object]:
    """Thoughts without text or calls are a message with an empty text."""
    if message["content"] is None and "tool_calls" not in message:
        return {**message, "content": ""}
    return message


def _format(given: Given | None) -> dict[str, object] | None:
    if given is None:
        return None
    kind = checks.one_of("text.format.type", given.get("type"), FORMATS)
    if kind != "json_schema":
        return {"type": kind}
    if given.get("schema") is None:
        raise MissingKey("text.format.schema", "schema")
    return {"type": kind, "json_schema": {"name": "output", "schema": given["schema"]}}


def _without_effect(body: ResponsesRequest) -> list[str]:
    found = [f"include.{name}" for name in body.include if name != LOGPROBS]
    if body.store:
        found.append("store")
    return found
