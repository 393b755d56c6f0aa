"""Embedding calls: each input becomes a request to the engine that ends with its prompt.

The embedding of a text is made of the hidden vectors of its tokens, as the model's files say, and
divided by its length. Of a decoder it is the vector of the last token, behind the last norm, where
every token of the text has been seen; one that was not trained for it gives vectors that compare
texts roughly.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ContextLengthExceeded, InvalidField, RequestError, UserError
from mlc_llm.pooling import LAST_TOKEN, Pooling, encoder_pooling
from mlc_llm.protocol.embedding_protocol import (
    Embedding,
    EmbeddingRequest,
    EmbeddingResponse,
    EmbeddingUsage,
)
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_responses import UsageInfo
from mlc_llm.protocol.prompt_field import Prompt
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.openai.calls import Call, Part
from mlc_llm.serve.openai.chunks import Chunk, check_failure
from mlc_llm.serve.openai.requests import ChatModel, warn_of_ignored
from mlc_llm.serve.request import Request

INPUTS_OF_AN_ANSWER = 8
"""So many inputs count as much as one answer, where a server bounds its work."""

EmbeddingCall = Call[NoReturn, EmbeddingResponse]
Vector = npt.NDArray[np.float32]


def embedding_call(request: EmbeddingRequest, request_id: str, model: ChatModel) -> EmbeddingCall:
    """The call of a request. Raises `InvalidField` for more dimensions than the model has,
    `UserError` for a decoder that nobody has said to make embeddings, and for a model whose files
    want a pooling that it cannot have here."""
    pooling = _pooling(model)
    size = model.hidden_size
    if request.dimensions is not None and request.dimensions > size:
        raise InvalidField("dimensions", request.dimensions, f"this model's vectors have {size}")
    warn_of_ignored(request)
    inputs, model = request.inputs, model.named(request.model)
    ids = [request_id if len(inputs) == 1 else f"{request_id}-{i}" for i in range(len(inputs))]
    pairs = zip(ids, inputs, strict=True)
    parts = [Part(one, 1, _Making(one, i, text, model)) for i, (one, text) in enumerate(pairs)]
    whole = WholeEmbeddings(request, request_id, len(parts), pooling)
    cost = -(-len(parts) // INPUTS_OF_AN_ANSWER)
    return Call(parts, Unstreamed(), whole, cost, counted="input")


def _pooling(model: ChatModel) -> Pooling:
    """Raises `UserError`."""
    if model.pooling is None and not model.is_encoder:
        raise UserError(
            "the files of this decoder do not say that it makes embeddings: to compare texts "
            f"roughly with it, open it with pooling {LAST_TOKEN!r}"
        )
    made = encoder_pooling(model.pooling) if model.is_encoder else LAST_TOKEN
    if model.pooling not in (None, made):
        kind = "encoder" if model.is_encoder else "decoder"
        can = "mean, cls and last_token" if model.is_encoder else "the last token alone"
        raise UserError(
            f"the files of this {kind} ask for {model.pooling} pooling, and its embeddings can "
            f"be made of {can}: use another model for embeddings, or set pooling"
        )
    return made


class _Making:
    """Makes the engine's request of one input."""

    def __init__(self, request_id: str, index: int, text: Prompt, model: ChatModel) -> None:
        self._request_id, self._index, self._text, self._model = request_id, index, text, model

    def __call__(self) -> Request:
        """Raises `InvalidField`, `ContextLengthExceeded`."""
        model, text = self._model, self._text
        if isinstance(text, str):
            ids = model.tokenizer.encode(text, max_tokens=model.context)
        else:
            ids = text
        if not ids:
            raise InvalidField(f"input[{self._index}]", text, "it has no tokens")
        if isinstance(text, str):
            ids = model.tokenizer.frame.around(ids)
        return vector_request(self._request_id, ids, model)


def vector_request(
    request_id: str, ids: Sequence[int], model: ChatModel, second_at: int = 0
) -> Request:
    """The request for the vector of these tokens; second_at: as in `Request`. Raises
    `ContextLengthExceeded`."""
    if len(ids) > model.context - model.least_answer:
        raise ContextLengthExceeded(len(ids), model.context, answer=model.least_answer)
    return Request(
        request_id,
        [TokenData(ids)],
        GenerationConfig(max_tokens=0),
        model.load_id,
        is_embedding=True,
        second_at=second_at,
        adapter=model.adapter,
    )


class Unstreamed:
    """The answer comes as a whole."""

    def of(self, _part: int, _chunk: Chunk) -> Iterator[NoReturn]:
        return iter(())


class WholeEmbeddings:
    """Collects the embeddings of one call."""

    def __init__(
        self,
        request: EmbeddingRequest,
        request_id: str,
        inputs: int,
        pooling: Pooling = LAST_TOKEN,
    ) -> None:
        self._request, self._request_id, self._pooling = request, request_id, pooling
        self._vectors: list[Vector | None] = [None] * inputs
        self._prompt_tokens = 0

    def put(self, part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if a request failed."""
        check_failure(chunk, self._request_id)
        if chunk.embedding is not None:
            self._vectors[part] = unit_vector(chunk.embedding, self._request.dimensions)
        if chunk.usage_json is not None:
            self._prompt_tokens += UsageInfo.model_validate_json(chunk.usage_json).prompt_tokens

    def response(self) -> EmbeddingResponse:
        """The answer; all requests must have ended. Raises `RequestError` if one was aborted."""
        data = []
        for i, vector in enumerate(self._vectors):
            if vector is None:
                raise RequestError(f"request {self._request_id} was ended before its end")
            data.append(Embedding(index=i, embedding=self._encoded(vector)))
        count = self._prompt_tokens
        usage = EmbeddingUsage(prompt_tokens=count, total_tokens=count)
        name = self._request.model or ""
        return EmbeddingResponse(data=data, model=name, usage=usage, pooling=self._pooling)

    def _encoded(self, vector: Vector) -> list[float] | str:
        if self._request.encoding_format == "base64":
            return base64.b64encode(vector.astype("<f4").tobytes()).decode("ascii")
        numbers: list[float] = vector.tolist()
        return numbers


def unit_vector(hidden: Sequence[float], dimensions: int | None = None) -> Vector:
    """The first `dimensions` numbers, None: all of them, divided by their length."""
    kept = np.asarray(hidden, np.float64)[:dimensions]
    length = float(np.linalg.norm(kept))
    return (kept / length if length > 0 else kept).astype(np.float32)
