"""What a tokenizer is made of, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

import tokenizers as hf
from tokenizers import models

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.words import Words


class Strip(NamedTuple):
    """Whether a control token swallows the white space on a side of it."""

    left: bool
    right: bool


class Backends(NamedTuple):
    """The library's tokenizers, each with the whole vocabulary."""

    recognising: hf.Tokenizer
    """Takes the names of control tokens for control tokens."""
    plain: hf.Tokenizer
    """Takes them for ordinary text."""
    continued: hf.Tokenizer
    """Like `plain`, for text that goes on behind other text."""
    after_control: hf.Tokenizer
    """Like `plain`, for text behind a control token."""


class Prefix(Enum):
    """What gets a space in front that the text does not have."""

    NONE = "nothing"
    FIRST = "the start of a text"
    EVERY = "each stretch between control tokens"


class Tables(NamedTuple):
    """The library's models that the tokenizers are made of."""

    recognising: models.Model
    plain: models.Model
    """Finds no name of a control token in ordinary text. Often the same object."""


def broken_merges(
    error: Exception, ids: Mapping[str, int], merges: Iterable[tuple[str, str]]
) -> ModelFileError:
    """What to say of merges that the library refuses with `error`."""
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in ids:
                line, missing = f"{left} {right}"[:40], token[:40]
                return ModelFileError(
                    f"tokenizer.ggml.merges: {line!r} needs the token {missing!r}, which is not in "
                    "tokenizer.ggml.tokens"
                )
    return ModelFileError(f"tokenizer.ggml.merges: {error}")


def hidden(ids: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    """A vocabulary in which some tokens are found in no text.

    They get a space in front, which no text has by the time it reaches the model: it is written in
    another way, or cut at.
    """
    return {f" {token}" if token in names else token: i for token, i in ids.items()}


@dataclass(frozen=True)
class Parts:
    """The pieces of a `Tokenizer`."""

    backends: Callable[[], Backends]
    """Made at the first call at the latest."""
    token_bytes: Callable[[int], bytes]
    vocab_size: int
    special_tokens: dict[str, int]
    bos_token_id: int | None
    eos_token_ids: frozenset[int]
    add_bos: bool
    strips_leading_space: bool
    strips: dict[int, Strip] = field(default_factory=dict)
    """Of the control tokens that swallow white space."""
    words: Words | None = None
    """What encodes short texts before the backends are made."""
