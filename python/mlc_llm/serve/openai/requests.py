"""Makes engine requests of chat requests: the same for every front end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ContextLengthExceeded, InvalidField
from mlc_llm.protocol.chat_parameters import ChatParameters, CompletionParameters
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.openai.chat import chat_prompt
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

_log = logging.getLogger(__name__)


class ChatModel(NamedTuple):
    """The parts of a loaded model that its requests need."""

    tokenizer: Tokenizer
    template: ChatTemplate | Conversation | None
    defaults: GenerationConfig
    """The values of fields that a request leaves open."""
    context: int
    """The most tokens of a prompt and its answer together."""
    load_id: int
    """See `OpenEngine.load_id`."""


def request_of(parameters: ChatParameters, *, stream: bool = True) -> ChatCompletionRequest:
    """The request of the arguments of `create`. stream: the default. Raises `UserError` that names
    the field."""
    return ChatCompletionRequest.parse(_fields(parameters, ChatCompletionRequest, stream))


def completion_request_of(parameters: CompletionParameters) -> CompletionRequest:
    """The request of the arguments of `create`. Raises `UserError` that names the field."""
    return CompletionRequest.parse(_fields(parameters, CompletionRequest, False))


def _fields(
    parameters: ChatParameters | CompletionParameters, kind: type[BaseModel], stream: bool
) -> dict[str, object]:
    given = dict[str, object](parameters)
    own = {name: value for name, value in given.items() if name in kind.model_fields}
    more = parameters.get("extra_body") or {}
    return {"stream": stream, **own, **more}


def check_chat_request(request: ChatCompletionRequest) -> None:
    """Raise `InvalidField` for what this version cannot do, and log the fields without effect."""
    if request.tool_choice == "required":
        allowed = "Invalid tool_choice value; a call cannot be required in this version"
        raise InvalidField("tool_choice", request.tool_choice, allowed)
    unknown = request.unknown_fields()
    if unknown:
        _log.warning("fields of the request that have no effect: %s", ", ".join(unknown))


def engine_config(request: ChatCompletionRequest, model: ChatModel) -> GenerationConfig:
    """The settings of the request; the model's defaults fill the others. Raises `UserError` for
    settings that contradict each other."""
    return request.generation_config().merged_over(model.defaults)


def engine_request(
    request: ChatCompletionRequest, request_id: str, config: GenerationConfig, model: ChatModel
) -> Request:
    """The request to the engine. config: see `engine_config`. Raises like `request_prompt`."""
    if config.debug_config.special_request is not None:
        return Request(request_id, [], config, model.load_id)
    ids = request_prompt(
        request, tokenizer=model.tokenizer, template=model.template, context=model.context
    )
    return Request(request_id, [TokenData(ids)], config, model.load_id)


def conversation_prompt(
    fields: Mapping[str, object],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    context: int,
) -> list[int]:
    """Like `request_prompt`, for the fields of a request (`messages`, `tools`, `tool_choice`) that
    nobody has checked. Raises `UserError` that names the field."""
    request = ChatCompletionRequest.parse(fields)
    check_chat_request(request)
    return request_prompt(request, tokenizer=tokenizer, template=template, context=context)


def request_prompt(
    request: ChatCompletionRequest,
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    context: int,
) -> list[int]:
    """Token ids of the conversation, up to the place where the assistant's answer begins.

    Raises like `chat_prompt`, and `ContextLengthExceeded` for a prompt that leaves no room for an
    answer in `context` tokens.
    """
    ids = chat_prompt(
        [message.model_dump() for message in request.messages],
        tokenizer=tokenizer,
        template=template,
        tools=[tool.model_dump(exclude_none=True) for tool in request.usable_tools],
        max_tokens=context,
    )
    if len(ids) >= context:
        raise ContextLengthExceeded(len(ids), context)
    return ids
