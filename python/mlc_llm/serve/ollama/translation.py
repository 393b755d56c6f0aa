"""Requests of Ollama's API as chat and completion requests."""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import InvalidField, MissingKey
from mlc_llm.protocol import checks
from mlc_llm.protocol.messages import MAX_IMAGES, MAX_TEXT_CHARS, MAX_TOOL_CALLS, image_part
from mlc_llm.protocol.openai_api_protocol import (
    COMPLETION_MAX_TOP_LOGPROBS,
    ChatCompletionRequest,
    CompletionRequest,
)
from mlc_llm.serve.ollama.fields import ChatRequest, GenerateRequest
from mlc_llm.serve.openai.translated import THINKS, THINKS_NOT, Translated

ROLES = ("system", "user", "assistant", "tool")


def translated_chat(
    body: ChatRequest, model: str, context: int
) -> Translated[ChatCompletionRequest]:
    """model: the served name. context: tokens of the model. Raises `UserError` that names the field
    of `body`."""
    messages = [_message(f"messages[{i}]", one) for i, one in enumerate(body.messages)]
    if messages[-1]["role"] == "assistant":
        allowed = "the last message should be the user's: an answer cannot be continued"
        raise InvalidField(f"messages[{len(messages) - 1}].role", "assistant", allowed)
    fields = {"messages": messages, "tools": body.tools, **_chat_fields(body, model, context)}
    return Translated(ChatCompletionRequest.parse(fields), _ignored(body), ["think"])


def translated_prompt(
    body: GenerateRequest, model: str, context: int
) -> Translated[ChatCompletionRequest] | Translated[CompletionRequest]:
    """Like `translated_chat`."""
    if body.raw:
        if body.images:
            raise InvalidField("images", "...", "a raw prompt has no place for them; leave out raw")
        ignored = _ignored(body) + [name for name in ("system", "think") if getattr(body, name)]
        fields = {"prompt": body.prompt, **_raw_fields(body, model, context)}
        return Translated(CompletionRequest.parse(fields), ignored)
    system = [{"role": "system", "content": body.system}] if body.system else []
    content = _with_images("images", body.images, body.prompt)
    messages = [*system, {"role": "user", "content": content}]
    fields = {"messages": messages, **_chat_fields(body, model, context)}
    return Translated(ChatCompletionRequest.parse(fields), _ignored(body), ["think"])


def _chat_fields(
    body: ChatRequest | GenerateRequest, model: str, context: int
) -> dict[str, object]:
    own = {
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs,
        "reasoning_effort": _effort(body.think),
    }
    return {**_fields(body, model, context), **own}


def _effort(think: bool | str | None) -> str | None:
    if isinstance(think, bool):
        return THINKS if think else THINKS_NOT
    return think


def _raw_fields(body: GenerateRequest, model: str, context: int) -> dict[str, object]:
    top = body.top_logprobs or 0
    if top > COMPLETION_MAX_TOP_LOGPROBS:
        allowed = f"at most {COMPLETION_MAX_TOP_LOGPROBS} with raw"
        raise InvalidField("top_logprobs", top, allowed)
    logprobs = {"logprobs": top if body.logprobs else None}
    return {**_fields(body, model, context), **logprobs}


def _fields(body: ChatRequest | GenerateRequest, model: str, context: int) -> dict[str, object]:
    options = body.options
    if options.num_ctx is not None and options.num_ctx > context:
        allowed = f"the context of this model has {context} tokens here"
        raise InvalidField("options.num_ctx", options.num_ctx, allowed)
    return {
        "model": model,
        "stream": body.stream,
        "max_tokens": options.num_predict,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "min_p": options.min_p,
        "seed": options.seed,
        "stop": options.stop,
        "repetition_penalty": options.repeat_penalty,
        "presence_penalty": options.presence_penalty,
        "frequency_penalty": options.frequency_penalty,
        "response_format": _format(body.format),
    }


def _format(given: str | dict[str, object] | None) -> dict[str, object] | None:
    if not given:
        return None
    if isinstance(given, str):
        return {"type": "json_object"}
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": given}}


def _message(field: str, message: Mapping[str, object]) -> dict[str, object]:
    role = checks.one_of(f"{field}.role", message.get("role"), ROLES)
    content = message.get("content")
    found: dict[str, object] = {"role": role, "content": None}
    if content is not None:
        found["content"] = checks.string(f"{field}.content", content, MAX_TEXT_CHARS)
    if message.get("images"):
        text = str(found["content"] or "")
        found["content"] = _with_images(f"{field}.images", message["images"], text)
    thinking = message.get("thinking")
    if thinking:
        thoughts = checks.string(f"{field}.thinking", thinking, MAX_TEXT_CHARS)
        found["reasoning_content"] = thoughts
    if message.get("tool_calls"):
        found["tool_calls"] = _calls(f"{field}.tool_calls", message["tool_calls"])
    if role == "tool":
        found["name"] = message.get("tool_name") or message.get("name")
        found["tool_call_id"] = message.get("tool_call_id")
    return found


def _with_images(field: str, images: object, text: str) -> str | list[dict[str, object]]:
    """The text, or its images in base64 before it as parts of OpenAI's content."""
    found: list[dict[str, object]] = []
    for i, one in enumerate(checks.listing(field, images or [], MAX_IMAGES)):
        data = checks.string(f"{field}[{i}]", one, MAX_TEXT_CHARS, min_chars=1)
        found.append(image_part(f"data:;base64,{data}"))
    if not found:
        return text
    if text:
        found.append({"type": "text", "text": text})
    return found


def _calls(field: str, calls: object) -> list[dict[str, object]]:
    found = []
    for i, call in enumerate(checks.listing(field, calls, MAX_TOOL_CALLS)):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(call, Mapping) or not isinstance(function, Mapping):
            raise checks.wrong_type(f"{field}[{i}]", call, "should be an object with a function")
        if "name" not in function:
            raise MissingKey(f"{field}[{i}].function.name", "name")
        own = {"name": function["name"], "arguments": function.get("arguments")}
        found.append({"id": call.get("id"), "type": "function", "function": own})
    return found


def _ignored(body: ChatRequest | GenerateRequest) -> list[str]:
    return body.unknown_fields()
