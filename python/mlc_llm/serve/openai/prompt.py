"""From a checked chat request to the token ids of its prompt: the same for every front end."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import ContextLengthExceeded, InvalidField
from mlc_llm.protocol.conversation_protocol import Conversation
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.chat import chat_prompt
from mlc_llm.tokenizers import Tokenizer

_log = logging.getLogger(__name__)


def check_chat_request(request: ChatCompletionRequest) -> None:
    """Refuse what no engine of this version does, and log the fields that have no effect.

    Raises `InvalidField`.
    """
    if request.tool_choice == "required":
        allowed = "Invalid tool_choice value; a call cannot be required in this version"
        raise InvalidField("tool_choice", request.tool_choice, allowed)
    unknown = request.unknown_fields()
    if unknown:
        _log.warning("fields of the request that have no effect: %s", ", ".join(unknown))


def conversation_prompt(
    fields: Mapping[str, Any],
    *,
    tokenizer: Tokenizer,
    template: ChatTemplate | Conversation | None,
    context: int,
) -> list[int]:
    """As `request_prompt`, of a request's fields (`messages`, `tools`, `tool_choice`) that are to
    be checked. Raises `UserError` naming the field."""
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
    """Token ids of the conversation, up to where the assistant's answer begins.

    Raises as `chat_prompt`, and `ContextLengthExceeded` for a prompt that leaves no room for an
    answer in `context` tokens.
    """
    ids = chat_prompt(
        [message.model_dump(exclude_none=True) for message in request.messages],
        tokenizer=tokenizer,
        template=template,
        tools=[tool.model_dump(exclude_none=True) for tool in request.usable_tools],
        max_tokens=context,
    )
    if len(ids) >= context:
        raise ContextLengthExceeded(len(ids), context)
    return ids
