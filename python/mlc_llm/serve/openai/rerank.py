"""Rerank calls: the model reads the query together with each document.

An encoder gives one number to such a pair. Of a decoder, the number is made here, of the hidden
vector of its prompt's last token. The answer has the sigmoid of the number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NoReturn

from mlc_llm.errors import RequestError, UserError
from mlc_llm.protocol.embedding_protocol import EmbeddingUsage
from mlc_llm.protocol.openai_responses import UsageInfo
from mlc_llm.protocol.rerank_protocol import (
    RerankDocument,
    RerankRequest,
    RerankResponse,
    RerankResult,
)
from mlc_llm.serve.openai.calls import Call, Part
from mlc_llm.serve.openai.chunks import Chunk, check_failure
from mlc_llm.serve.openai.embeddings import INPUTS_OF_AN_ANSWER, Unstreamed, vector_request
from mlc_llm.serve.openai.rank_prompts import Prompts, prompts_of
from mlc_llm.serve.openai.requests import ChatModel, warn_of_ignored
from mlc_llm.serve.request import NO_SCORES, Request

RerankCall = Call[NoReturn, RerankResponse]


def rerank_call(request: RerankRequest, request_id: str, model: ChatModel) -> RerankCall:
    """The call of a request. Raises `UserError` for a model that compares no texts, or gives a pair
    several scores."""
    if not model.scores:
        raise UserError(NO_SCORES)
    if model.scores > 1:
        words = f"this model gives {model.scores} scores to a pair of texts"
        raise UserError(f"{words}: reranking needs one that gives a single score")
    warn_of_ignored(request)
    prompts = prompts_of(request, model)
    ids = [f"{request_id}-{i}" for i in range(len(request.documents))]
    parts = [Part(one, 1, _Making(one, i, prompts, model)) for i, one in enumerate(ids)]
    number = _first if model.ranking is None else model.ranking.score
    whole = WholeRanking(request, request_id, number)
    cost = -(-len(parts) // INPUTS_OF_AN_ANSWER)
    return Call(parts, Unstreamed(), whole, cost, counted="documents")


class _Making:
    """Makes the engine's request of the document with an index."""

    def __init__(self, request_id: str, index: int, prompts: Prompts, model: ChatModel) -> None:
        self._request_id, self._index = request_id, index
        self._prompts, self._model = prompts, model

    def __call__(self) -> Request:
        """Raises `InvalidField`, `ContextLengthExceeded`."""
        ids, second_at = self._prompts(self._index)
        return vector_request(self._request_id, ids, self._model, second_at)


class WholeRanking:
    """Collects the scores of one call."""

    def __init__(
        self, request: RerankRequest, request_id: str, number: Callable[[Sequence[float]], float]
    ) -> None:
        """number: that of a document, of what the engine gives for it."""
        self._request, self._request_id, self._number = request, request_id, number
        self._scores: list[float | None] = [None] * len(request.documents)
        self._prompt_tokens = 0

    def put(self, part: int, chunk: Chunk) -> None:
        """Raises `RequestError` if a request failed."""
        check_failure(chunk, self._request_id)
        if chunk.embedding is not None:
            self._scores[part] = self._number(chunk.embedding)
        if chunk.usage_json is not None:
            self._prompt_tokens += UsageInfo.model_validate_json(chunk.usage_json).prompt_tokens

    def response(self) -> RerankResponse:
        """The answer; all requests must have ended. Raises `RequestError` if one was aborted."""
        found = []
        for i, score in enumerate(self._scores):
            if score is None:
                raise RequestError(f"request {self._request_id} was ended before its end")
            found.append((score, i))
        found.sort(key=lambda one: (-one[0], one[1]))
        count = self._prompt_tokens
        return RerankResponse(
            id=self._request_id,
            model=self._request.model or "",
            results=[self._result(*one) for one in found[: self._request.top_n]],
            usage=EmbeddingUsage(prompt_tokens=count, total_tokens=count),
        )

    def _result(self, score: float, index: int) -> RerankResult:
        text = self._request.documents[index] if self._request.return_documents else None
        document = None if text is None else RerankDocument(text=text)
        return RerankResult(index=index, relevance_score=_sigmoid(score), document=document)


def _first(scores: Sequence[float]) -> float:
    """Of an encoder, which gives a single one."""
    return scores[0]


def _sigmoid(x: float) -> float:
    """Without an overflow."""
    return 0.5 * (1 + math.tanh(x / 2))
