"""Makes engine requests of chat requests: the same for every front end."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.images.reader import ImageReader
from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.chat_parameters import (
    AnyParameters,
    ChatParameters,
    CompletionParameters,
    EmbeddingParameters,
)
from mlc_llm.protocol.checks import wrong_type
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.embedding_protocol import EmbeddingRequest
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.openai.chat import ChatPrompt
from mlc_llm.serve.openai.chat_form import ChatForm, request_prompt
from mlc_llm.serve.openai.model import ChatModel
from mlc_llm.serve.openai.tools.families import for_tools
from mlc_llm.serve.openai.tools.tool_schema import not_kept
from mlc_llm.serve.openai.tools.variables import effort_has_effect
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

__all__ = [
    "ChatForm",
    "ChatModel",
    "completion_request_of",
    "conversation_prompt",
    "embedding_request_of",
    "engine_config",
    "engine_request",
    "request_of",
    "request_prompt",
    "warn_of_ignored",
    "without_effect",
]

_log = logging.getLogger(__name__)


def request_of(parameters: ChatParameters, *, stream: bool = True) -> ChatCompletionRequest:
    """The request of the arguments of `create`. stream: the default. Raises `UserError` that names
    the field."""
    return ChatCompletionRequest.parse(_fields(parameters, ChatCompletionRequest, stream))


def completion_request_of(parameters: CompletionParameters) -> CompletionRequest:
    """The request of the arguments of `create`. Raises `UserError` that names the field."""
    return CompletionRequest.parse(_fields(parameters, CompletionRequest, False))


def embedding_request_of(parameters: EmbeddingParameters) -> EmbeddingRequest:
    """The request of the arguments of `create`. Raises `UserError` that names the field."""
    return EmbeddingRequest.parse(_given(parameters, EmbeddingRequest))


def _fields(
    parameters: ChatParameters | CompletionParameters, kind: type[BaseModel], stream: bool
) -> dict[str, object]:
    return {"stream": stream, **_given(parameters, kind)}


def _given(parameters: AnyParameters, kind: type[BaseModel]) -> dict[str, object]:
    given = dict[str, object](parameters)
    own = {name: value for name, value in given.items() if name in kind.model_fields}
    more = parameters.get("extra_body")
    if not isinstance(more, Mapping | None):
        raise wrong_type("extra_body", more, "should be a dict of fields of the request")
    return {**own, **(more or {})}


def without_effect(
    request: ChatCompletionRequest, template: ChatTemplate | Conversation | None
) -> list[str]:
    """The known fields of a request that change nothing for a model of this template; and the
    keywords in the schemas of tools that calls are not held to."""
    effort = request.reasoning_effort
    used = for_tools(template, request.usable_tools)
    has_effect = effort is None or effort_has_effect(used, effort)
    found = [] if has_effect else ["reasoning_effort"]
    for i, tool in enumerate(request.tools or ()):
        if not tool.function.strict:
            place = f"tools[{i}].function.parameters"
            found += not_kept(tool.function.parameters, place)
    return found


def warn_of_ignored(request: AnswerModel, more: Sequence[str] = ()) -> None:
    """Log the fields without effect. more: those that are known."""
    unknown = [*request.unknown_fields(), *more]
    if unknown:
        _log.warning("fields of the request that have no effect: %s", ", ".join(unknown))


def engine_config(request: ChatCompletionRequest, model: ChatModel) -> GenerationConfig:
    """The settings of the request; the model's defaults fill the others. Raises `UserError` for
    settings that contradict each other."""
    return request.generation_config().for_chat(model.defaults)


def engine_request(form: ChatForm, request_id: str, config: GenerationConfig) -> Request:
    """The request to the engine. config: see `engine_config`. Raises like `request_prompt`."""
    return form.engine_request(request_id, config)


def conversation_prompt(
    fields: Mapping[str, object],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    context: int,
    images: ImageReader | None = None,
) -> ChatPrompt:
    """A prompt like `request_prompt`, for the fields of a request (`messages`, `tools`,
    `tool_choice`) that nobody has checked. The answer is text, so a call cannot be required. Raises
    `UserError` that names the field."""
    request = ChatCompletionRequest.parse(fields)
    if request.tool_choice == "required":
        allowed = "Invalid tool_choice value; only the engines of OpenAI's API read calls"
        raise InvalidField("tool_choice", request.tool_choice, allowed)
    warn_of_ignored(request)
    return request_prompt(
        request, tokenizer=tokenizer, template=template, context=context, images=images
    )
