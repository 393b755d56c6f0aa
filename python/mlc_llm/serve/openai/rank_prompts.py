"""The token ids of a query and a document, as a model reads them together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, TypeAlias

from mlc_llm.errors import InvalidField
from mlc_llm.serve.openai.model import ChatModel

if TYPE_CHECKING:
    from mlc_llm.protocol.rerank_protocol import RerankRequest
    from mlc_llm.tokenizers import Tokenizer

Prompts: TypeAlias = Callable[[int], tuple[list[int], int]]
"""Of the document with an index: the token ids, and `Request.second_at`. Raises `InvalidField`,
`ContextLengthExceeded`."""
_PLACES = re.compile(r"\{(query|document)\}")


def prompts_of(request: RerankRequest, model: ChatModel) -> Prompts:
    """A decoder has a prompt for the texts, and an encoder a frame for pairs."""
    if model.ranking is not None:
        return partial(_filled, request, model, model.ranking.template)
    query = cache(partial(_tokens, "query", request.query, model))
    return partial(_pair, request, model, query)


def _filled(
    request: RerankRequest, model: ChatModel, template: str, index: int
) -> tuple[list[int], int]:
    texts = {"query": request.query, "document": request.documents[index]}
    model.tokenizer.check_size(texts.values(), model.context)
    return model.tokenizer.encode_segments(segments(template, texts, model.tokenizer)), 0


def segments(template: str, texts: Mapping[str, str], tokenizer: Tokenizer) -> list[str | int]:
    """For `Tokenizer.encode_segments`: the template's own text makes control tokens, and the texts
    in its places are ordinary text, whatever they say. No two strings follow each other."""
    found: list[str | int] = []
    for i, piece in enumerate(_PLACES.split(template)):
        for one in [texts[piece]] if i % 2 else tokenizer.split_control(piece):
            last = found[-1] if found else 0
            if isinstance(one, str) and isinstance(last, str):
                found[-1] = last + one
            else:
                found.append(one)
    return found


def _pair(
    request: RerankRequest, model: ChatModel, query: Callable[[], list[int]], index: int
) -> tuple[list[int], int]:
    """query: its tokens, which are made once for all documents."""
    texts = query(), _tokens(f"documents[{index}]", request.documents[index], model)
    return model.tokenizer.frame.pair(*texts)


def _tokens(field: str, text: str, model: ChatModel) -> list[int]:
    """Raises `InvalidField` for a text without any, `ContextLengthExceeded` for a long one."""
    found = model.tokenizer.encode(text, max_tokens=model.context)
    if not found:
        raise InvalidField(field, text, "it has no tokens")
    return found
