"""A request of the Responses API as a chat request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.openai_api_protocol import REASONING_EFFORTS, ChatCompletionRequest
from mlc_llm.protocol.openai_messages import MAX_NAME_CHARS
from mlc_llm.serve.openai.translated import Translated
from mlc_llm.serve.responses.fields import LOGPROBS, ResponsesRequest
from mlc_llm.serve.responses.items import Conversation

FORMATS = ("text", "json_object", "json_schema")
CHOICES = ("none", "auto", "required")

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
        **_tools(body),
    }
    ignored = [*body.unknown_fields(), *conversation.dropped, *_without_effect(body)]
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


def _tools(body: ResponsesRequest) -> dict[str, object]:
    tools = [_tool(f"tools[{i}]", one) for i, one in enumerate(body.tools or ())]
    names = [name for name, _ in tools]
    choice: object = body.tool_choice
    if isinstance(choice, Mapping):
        choice, names = _choice(choice, names)
    elif choice is not None:
        checks.one_of("tool_choice", choice, CHOICES)
        if choice == "required" and not names:
            raise InvalidField("tool_choice", choice, "there are no tools to choose from")
    return {"tools": [tool for name, tool in tools if name in names], "tool_choice": choice}


def _tool(path: str, tool: Given) -> tuple[str, Given]:
    """Its name, and itself in the chat API's shape."""
    if tool.get("type") != "function":
        allowed = "only function; this server runs no tools itself"
        raise InvalidField(f"{path}.type", tool.get("type"), allowed)
    name = checks.string(f"{path}.name", tool.get("name"), MAX_NAME_CHARS, min_chars=1)
    parameters = tool.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise checks.wrong_type(f"{path}.parameters", parameters, "should be a JSON schema")
    own = {key: tool.get(key) for key in ("description", "parameters", "strict")}
    return name, {"type": "function", "function": {"name": name, **own}}


def _choice(choice: Given, names: Sequence[str]) -> tuple[object, list[str]]:
    """The choice of the chat API, and the tools that may be chosen."""
    if choice.get("type") == "function":
        name = _known("tool_choice.name", choice.get("name"), names)
        return {"type": "function", "function": {"name": name}}, list(names)
    if choice.get("type") != "allowed_tools":
        allowed = "should be function or allowed_tools; this server runs no tools itself"
        raise InvalidField("tool_choice.type", choice.get("type"), allowed)
    mode = checks.one_of("tool_choice.mode", choice.get("mode"), ("auto", "required"))
    found = []
    for i, tool in enumerate(checks.listing("tool_choice.tools", choice.get("tools"), len(names))):
        given = tool.get("name") if isinstance(tool, Mapping) else None
        found.append(_known(f"tool_choice.tools[{i}].name", given, names))
    return mode, found


def _known(field: str, name: object, names: Sequence[str]) -> str:
    if name not in names:
        raise InvalidField(field, name, "it names none of the tools")
    return str(name)


def _without_effect(body: ResponsesRequest) -> list[str]:
    found = [f"include.{name}" for name in body.include if name != LOGPROBS]
    if body.store:
        found.append("store")
    return found
