"""A request of Anthropic's API as a chat request."""

from __future__ import annotations

from typing import TypeAlias

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.openai_api_protocol import REASONING_EFFORTS, ChatCompletionRequest
from mlc_llm.serve.anthropic.fields import (
    CountTokensRequest,
    MessagesRequest,
    OutputConfig,
    Tool,
    ToolChoice,
)
from mlc_llm.serve.anthropic.messages import Translation
from mlc_llm.serve.openai.translated import THINKS, THINKS_NOT, Translated

CHOICES = {"auto": "auto", "any": "required", "none": "none"}

Body: TypeAlias = MessagesRequest | CountTokensRequest


def translated(body: Body, model: str) -> Translated[ChatCompletionRequest]:
    """model: the served name. Raises `UserError` that names the field of `body`."""
    messages = Translation()
    messages.system(body.system)
    for i, message in enumerate(body.messages):
        messages.turn(f"messages[{i}]", message)
    if messages.messages[-1]["role"] == "assistant":
        allowed = "the last message should be the user's: an answer cannot be continued"
        raise InvalidField(f"messages[{len(body.messages) - 1}].role", "assistant", allowed)
    fields: dict[str, object] = {"model": model, "messages": messages.messages}
    if body.tools:
        fields["tools"] = [_tool(one) for one in body.tools]
    if body.tool_choice is not None:
        fields |= _choice(body.tool_choice, [one.name for one in body.tools or ()])
    if body.output_config is not None and body.output_config.format is not None:
        fields["response_format"] = _format(body.output_config)
    if isinstance(body, MessagesRequest):
        fields |= _sampling(body)
    effort, effort_fields = _effort(body)
    fields["reasoning_effort"] = effort
    ignored = [*body.unknown_fields(), *messages.dropped]
    if body.thinking is not None and body.thinking.budget_tokens is not None:
        ignored.append("thinking.budget_tokens")
    return Translated(ChatCompletionRequest.parse(fields), ignored, effort_fields)


def _sampling(body: MessagesRequest) -> dict[str, object]:
    return {
        "max_tokens": body.max_tokens,
        "stop": body.stop_sequences,
        "stream": body.stream,
        "temperature": body.temperature,
        "top_k": body.top_k,
        "top_p": body.top_p,
    }


def _tool(tool: Tool) -> dict[str, object]:
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.input_schema,
        "strict": tool.strict,
    }
    return {"type": "function", "function": function}


def _choice(choice: ToolChoice, names: list[str]) -> dict[str, object]:
    found: dict[str, object] = {}
    if choice.disable_parallel_tool_use is not None:
        found["parallel_tool_calls"] = not choice.disable_parallel_tool_use
    if choice.type != "tool":
        if choice.type == "any" and not names:
            raise InvalidField("tool_choice.type", "any", "there are no tools to choose from")
        return {**found, "tool_choice": CHOICES[choice.type]}
    if choice.name is None:
        raise MissingKey("tool_choice.name", "name")
    if choice.name not in names:
        raise InvalidField("tool_choice.name", choice.name, "it names none of the tools")
    named = {"type": "function", "function": {"name": choice.name}}
    return {**found, "tool_choice": named}


def _format(config: OutputConfig) -> dict[str, object]:
    given = config.format or {}
    if given.get("type") != "json_schema":
        allowed = "should be json_schema"
        raise InvalidField("output_config.format.type", given.get("type"), allowed)
    if given.get("schema") is None:
        raise MissingKey("output_config.format.schema", "schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": given["schema"]}}


def _effort(body: Body) -> tuple[str | None, list[str]]:
    """How much the model thinks, and the fields that say so. Whether it thinks comes first."""
    found, names = None, []
    effort = None if body.output_config is None else body.output_config.effort
    if effort is not None:
        found = checks.one_of("output_config.effort", effort, REASONING_EFFORTS)
        names.append("output_config.effort")
    if body.thinking is not None:
        names.append("thinking")
        found = THINKS_NOT if body.thinking.type == "disabled" else found or THINKS
    return found, names
