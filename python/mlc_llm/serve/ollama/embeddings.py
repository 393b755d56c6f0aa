"""Embeddings in the shape of Ollama's API."""

from __future__ import annotations

from typing import NoReturn

from mlc_llm.protocol.base import AnswerModel
from mlc_llm.protocol.embedding_protocol import EmbeddingRequest, EmbeddingResponse
from mlc_llm.serve.ollama.fields import EmbedRequest, OldEmbedRequest
from mlc_llm.serve.ollama.lines import Clock
from mlc_llm.serve.openai.calls import Call, Whole
from mlc_llm.serve.openai.chunks import Chunk
from mlc_llm.serve.openai.embeddings import embedding_call
from mlc_llm.serve.openai.model import ChatModel


class EmbedAnswer(AnswerModel):
    """The embeddings of all inputs, in their order."""

    model: str
    embeddings: list[list[float] | str]
    """Lists of numbers: no other form can be asked for here."""
    total_duration: int
    """Nanoseconds, like the next one."""
    load_duration: int
    prompt_eval_count: int


def embed_request(body: EmbedRequest, model: str) -> tuple[EmbeddingRequest, list[str]]:
    """The request in OpenAI's words, and the fields without effect. model: the served name. Raises
    `InvalidField`."""
    fields = {"input": body.input, "dimensions": body.dimensions, "model": model}
    ignored = body.unknown_fields()
    ignored += [f"options.{name}" for name in body.options or ()]
    # A text that is too long is refused, and never cut.
    ignored += ["truncate"] if body.truncate else []
    return EmbeddingRequest.parse(fields), ignored


def embed_call(
    request: EmbeddingRequest, request_id: str, name: str, clock: Clock, model: ChatModel
) -> Call[NoReturn, EmbedAnswer]:
    """name: of the model, as the caller gave it. Raises `UserError`."""
    call = embedding_call(request, request_id, model)
    return Call(call.parts, call.streamed, _Whole(call.whole, name, clock), cost=call.cost)


class OldEmbedAnswer(AnswerModel):
    """The embedding of one text."""

    embedding: list[float] | str


def old_embed_request(body: OldEmbedRequest, model: str) -> tuple[EmbeddingRequest, list[str]]:
    """The same for the older shape."""
    ignored = [*body.unknown_fields(), *(f"options.{name}" for name in body.options or ())]
    return EmbeddingRequest.parse({"input": body.prompt, "model": model}), ignored


def old_embed_call(
    request: EmbeddingRequest, request_id: str, model: ChatModel
) -> Call[NoReturn, OldEmbedAnswer]:
    """Raises `UserError`."""
    call = embedding_call(request, request_id, model)
    return Call(call.parts, call.streamed, _OldWhole(call.whole), cost=call.cost)


class _OldWhole:
    """The one embedding of OpenAI's API."""

    def __init__(self, inner: Whole[EmbeddingResponse]) -> None:
        self._inner = inner

    def put(self, part: int, chunk: Chunk) -> None:
        self._inner.put(part, chunk)

    def response(self) -> OldEmbedAnswer:
        (one,) = self._inner.response().data
        return OldEmbedAnswer(embedding=one.embedding)


class _Whole:
    """The whole answer of OpenAI's API, in the other shape."""

    def __init__(self, inner: Whole[EmbeddingResponse], name: str, clock: Clock) -> None:
        self._inner, self._name, self._clock = inner, name, clock

    def put(self, part: int, chunk: Chunk) -> None:
        self._inner.put(part, chunk)

    def response(self) -> EmbedAnswer:
        found = self._inner.response()
        return EmbedAnswer(
            model=self._name,
            embeddings=[one.embedding for one in found.data],
            prompt_eval_count=found.usage.prompt_tokens,
            **self._clock.durations(),
        )
