"""From a checked request of the Responses API to a call, which gives its events or its answer."""

from __future__ import annotations

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest
from mlc_llm.serve.openai.calls import Call, chat_call
from mlc_llm.serve.openai.events import Event
from mlc_llm.serve.openai.requests import ChatModel, engine_config
from mlc_llm.serve.responses.answers import Head, ResponseAnswer, WholeResponse
from mlc_llm.serve.responses.events import ResponseEvents
from mlc_llm.serve.responses.fields import ResponsesRequest


def response_call(
    body: ResponsesRequest, request: ChatCompletionRequest, request_id: str, model: ChatModel
) -> tuple[Call[Event, ResponseAnswer], ResponseEvents]:
    """The call, and its events with a beginning and an end. request: what `body` says in the words
    of the chat API. Raises `UserError`."""
    parts = chat_call(request, request_id, model).parts
    head = Head(body, request_id, request.model or "", engine_config(request, model))
    events = ResponseEvents(head)
    return Call(parts, events, WholeResponse(head)), events
