"""Requests and answers of OpenAI's API for embeddings."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, SkipValidation, field_validator

from mlc_llm.pooling import LAST_TOKEN, Pooling
from mlc_llm.protocol import checks
from mlc_llm.protocol.base import AnswerModel, OpenModel
from mlc_llm.protocol.checks import MAX_INT32
from mlc_llm.protocol.prompt_field import Prompt, Prompts, checked_prompts, prompts_of

MAX_INPUTS = 2048
FORMATS = ("float", "base64")
Format = Literal["float", "base64"]


def _format(value: object) -> object:
    if value not in FORMATS:
        raise checks.refuse("encoding_format", value, f"should be {' or '.join(FORMATS)}")
    return value


def _dimensions(value: object) -> int:
    return checks.integer("dimensions", value, 1, MAX_INT32)


class EmbeddingRequest(OpenModel):
    """A request for the embeddings of texts."""

    input: SkipValidation[Prompts]
    """One or many texts, or one or many lists of token ids; at most 2048."""
    model: str | None = None
    encoding_format: Annotated[Format, BeforeValidator(_format)] = "float"
    """`base64`: the bytes of float32 numbers, the lowest byte first."""
    dimensions: Annotated[int, BeforeValidator(_dimensions)] | None = None
    """Keep so many of the first numbers, and make the length 1 again. None keeps all."""
    user: str | None = None
    """Says who asks. It changes nothing."""

    @field_validator("input", mode="before")
    @classmethod
    def _input_form(cls, value: object) -> object:
        return checked_prompts("input", value, MAX_INPUTS)

    @property
    def inputs(self) -> list[Prompt]:
        """Each input, in order."""
        return prompts_of(self.input)


class Embedding(AnswerModel):
    """The embedding of the input with this index, of length 1."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(AnswerModel):
    """The tokens of all inputs together."""

    prompt_tokens: int = 0
    total_tokens: int = 0


class EmbeddingResponse(AnswerModel):
    """The embeddings of all inputs, in their order."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str = ""
    usage: EmbeddingUsage
    pooling: Pooling = LAST_TOKEN
    """Which hidden vectors of its tokens became the embedding of a text."""
