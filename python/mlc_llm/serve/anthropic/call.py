"""From a checked request of Anthropic's API to a call, which gives its events or its answer."""

from __future__ import annotations

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.anthropic.answers import MessageAnswer, WholeMessage
from mlc_llm.serve.anthropic.events import MessageEvents
from mlc_llm.serve.openai.calls import Call, chat_call
from mlc_llm.serve.openai.events import Event
from mlc_llm.serve.openai.prompt_size import PromptSize, prompt_tokens
from mlc_llm.serve.openai.requests import ChatModel


def message_call(
    request: ChatCompletionRequest, request_id: str, model: ChatModel
) -> tuple[Call[Event, MessageAnswer], MessageEvents]:
    """The call, and its events with a beginning and an end. Raises `UserError`."""
    size, name, stops = PromptSize(), request.model or "", request.stop or ()
    parts = [size.noting(part) for part in chat_call(request, request_id, model).parts]
    events = MessageEvents(request_id, name, size, stops)
    return Call(parts, events, WholeMessage(request_id, name, stops)), events


def count_tokens(request: ChatCompletionRequest, request_id: str, model: ChatModel) -> int:
    """Tokens of the prompt. It takes time. Raises `UserError`, also for a prompt that is too long
    for the model."""
    return sum(prompt_tokens(part.make()) for part in chat_call(request, request_id, model).parts)
