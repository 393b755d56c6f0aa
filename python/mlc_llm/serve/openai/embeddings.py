"""Embedding calls: each input becomes a request to the engine that ends with its prompt.

The embedding of a text is the hidden vector of the decoder behind the last token, behind the last
norm, divided by its length. Every token of the text has been seen there. A model that was not
trained for it gives vectors that compare texts roughly.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Iterator, Sequence
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ContextLengthExceeded, InvalidField, RequestError, UserError
from mlc_llm.pooling import LAST_TOKEN
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
from mlc_llm.serve.openai.requests import ChatModel
from mlc_llm.serve.request import Request

INPUTS_OF_AN_ANSWER = 8
"""So many inputs count as much as one answer, where a server bounds its work."""

EmbeddingCall = Call[NoReturn, EmbeddingResponse]
Vector = npt.NDArray[np.float32]

_log = logging.getLogger(__name__)


def embedding_call(request: EmbeddingRequest, request_id: str, model: ChatModel) -> EmbeddingCall:
    """The call of a request. Raises `InvalidField` for more dimensions than the model has,
    `UserError` for a decoder whose files want another pooling."""
    if model.pooling not in (None, LAST_TOKEN):
        raise UserError(
            f"the files of this decoder ask for {model.pooling} pooling, and its embeddings can "
            "only be made of the last token: use another model for embeddings"
        )
    size = model.hidden_size
    if request.dimensions is not None and request.dimensions > size:
        raise InvalidField("dimensions", request.dimensions, f"this model's vectors have {size}")
    unknown = request.unknown_fields()
    if unknown:
        _log.warning("fields of the request that have no effect: %s", ", ".join(unknown))
    inputs = request.inputs
    ids = [request_id if len(inputs) == 1 else f"{request_id}-{i}" for i in range(len(inputs))]
    pairs = zip(ids, inputs, strict=True)
    parts = [Part(one, 1, _Making(one, i, text, model)) for i, (one, text) in enumerate(pairs)]
    whole = WholeEmbeddings(request, request_id, len(parts))
    cost = -(-len(parts) // INPUTS_OF_AN_ANSWER)
    return Call(parts, _Unstreamed(), whole, cost, counted="input")


class _Making:
    """Makes the engine's request of one input."""

    def __init__(self, request_id: str, index: int, text: Prompt, model: ChatModel) -> None:
        self._request_id, self._index, self._text, self._model = request_id, index, text, model

    def __call__(self) -> Request:
        """Raises `InvalidField`, `ContextLengthExceeded`."""
        model, text = self._model, self._text
        ids = model.tokenizer.encode_prompt(text) if isinstance(text, str) else text
        if not ids:
            raise InvalidField(f"input[{self._index}]", text, "it has no tokens")
        if len(ids) >= model.context:
            raise ContextLengthExceeded(len(ids), model.context)
        config = GenerationConfig(max_tokens=0)
        return Request(self._request_id, [TokenData(ids)], config, model.load_id, is_embedding=True)


class _Unstreamed:
    """Embeddings come as a whole."""

    def of(self, _part: int, _chunk: Chunk) -> Iterator[NoReturn]:
        return iter(())


class WholeEmbeddings:
    """Collects the embeddings of one call."""

    def __init__(self, request: EmbeddingRequest, request_id: str, inputs: int) -> None:
        self._request, self._request_id = request, request_id
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
        return EmbeddingResponse(data=data, model=self._request.model or "", usage=usage)

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
