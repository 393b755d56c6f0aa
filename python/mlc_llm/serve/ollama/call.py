"""From a checked request of Ollama's API to a call, which gives its lines or its answer."""

from __future__ import annotations

from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.ollama.lines import Answer, Lines
from mlc_llm.serve.openai.calls import Call, chat_call
from mlc_llm.serve.openai.completions import completion_call
from mlc_llm.serve.openai.requests import ChatModel


def ollama_call(
    request: ChatCompletionRequest | CompletionRequest, lines: Lines, model: ChatModel
) -> Call[str, Answer]:
    """lines: what its answer becomes. Raises `UserError`."""
    if isinstance(request, ChatCompletionRequest):
        return Call(chat_call(request, lines.request_id, model).parts, lines, lines)
    return Call(completion_call(request, lines.request_id, model).parts, lines, lines)
