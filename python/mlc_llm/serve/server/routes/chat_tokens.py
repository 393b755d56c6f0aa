"""`/tokenize` for a conversation: the prompt that a chat of the same fields would compute."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from starlette.requests import Request

from mlc_llm.errors import InvalidField
from mlc_llm.protocol import checks
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.requests import ChatModel, request_prompt
from mlc_llm.serve.server.calls.context import ServedModel
from mlc_llm.serve.server.limits.holding import holds_of
from mlc_llm.serve.server.limits.tenants import tenant_of
from mlc_llm.serve.server.limits.threads import PREPARING
from mlc_llm.serve.server.streams.gone import unless_gone

CHAT_FIELDS = frozenset({"messages", "tools", "tool_choice", "chat_template_kwargs"})
"""What the prompt of a chat depends on, beside the model."""
_ONLY = {"add_generation_prompt": True, "continue_final_message": False}
"""Fields of vLLM, and the value that chats of this server have."""
KNOWN = CHAT_FIELDS | {"reasoning_effort"} | set(_ONLY)


async def chat_ids(request: Request, served: ServedModel, given: Mapping[str, object]) -> list[int]:
    """Token ids up to the place where the answer begins. given: fields of the body.

    Raises `UserError`, also for a prompt that is too long for the model, and `HTTPError`.
    """
    fields = dict(given)
    for name, only in _ONLY.items():
        if checks.boolean(name, fields.pop(name, only)) is not only:
            raise InvalidField(name, not only, f"chats of this server have {str(only).lower()}")
    if checks.boolean("add_special_tokens", fields.pop("add_special_tokens", False)):
        raise InvalidField("add_special_tokens", True, "the chat template has its own start")
    chat = ChatCompletionRequest.parse(fields)
    size = int(request.headers.get("content-length", 0))
    holds_of(request).enter_context(served.admission.entered(1, size, tenant_of(request)))
    return await unless_gone(request, _ids(chat, served.model))


async def _ids(chat: ChatCompletionRequest, model: ChatModel) -> list[int]:
    def encode() -> list[int]:
        return request_prompt(
            chat,
            tokenizer=model.tokenizer,
            template=model.template,
            context=model.context,
            images=model.images,
        ).token_ids

    return await asyncio.get_running_loop().run_in_executor(PREPARING, encode)
