"""What a tokenizer is made of, whatever file it came from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import tokenizers as hf

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
    """Like `plain`, for text that does not stand at the start."""


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
