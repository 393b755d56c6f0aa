"""Requests and answers of `/v1/rerank`, in the shape of Jina's and Cohere's APIs."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, field_validator

from mlc_llm.protocol import checks
from mlc_llm.protocol.base import AnswerModel, OpenModel
from mlc_llm.protocol.embedding_protocol import MAX_INPUTS, EmbeddingUsage
from mlc_llm.protocol.prompt_field import MAX_PROMPT_CHARS


def _query(value: object) -> str:
    return checks.string("query", value, MAX_PROMPT_CHARS, min_chars=1)


def _top_n(value: object) -> int:
    return checks.integer("top_n", value, 1, checks.MAX_INT32)


class RerankRequest(OpenModel):
    """A request for the order of documents by how well they answer a query."""

    query: Annotated[str, BeforeValidator(_query)]
    documents: list[str]
    """Texts, or objects with a `text`; at most 2048."""
    model: str | None = None
    top_n: Annotated[int, BeforeValidator(_top_n)] | None = None
    """So many of the best are in the answer. None: all."""
    return_documents: bool = False
    """The answer has the documents too."""

    @field_validator("documents", mode="before")
    @classmethod
    def _texts(cls, value: object) -> list[str]:
        items = checks.listing("documents", value, MAX_INPUTS)
        if not items:
            raise checks.refuse("documents", value, "should not be empty")
        return [_text(f"documents[{i}]", one) for i, one in enumerate(items)]

    @field_validator("return_documents", mode="before")
    @classmethod
    def _flag(cls, value: object) -> bool:
        return checks.boolean("return_documents", value)


def _text(field: str, value: object) -> str:
    if isinstance(value, dict):
        field, value = f"{field}.text", value.get("text")
    return checks.string(field, value, MAX_PROMPT_CHARS, min_chars=1)


class RerankDocument(AnswerModel):
    """A document as it was given."""

    text: str


class RerankResult(AnswerModel):
    """How well the document with this index answers the query, 0 to 1."""

    index: int
    relevance_score: float
    document: RerankDocument | None = None


class RerankResponse(AnswerModel):
    """The best documents, the best one first."""

    id: str
    model: str = ""
    results: list[RerankResult]
    usage: EmbeddingUsage
