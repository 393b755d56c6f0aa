"""The parts of a tokenizer. They are the same for every kind of file."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from enum import Enum
from typing import NamedTuple, Protocol

import tokenizers as hf
from tokenizers import models

from mlc_llm.errors import InvalidField, ModelFileError, one_line
from mlc_llm.record import record
from mlc_llm.tokenizers.frame import Frame
from mlc_llm.tokenizers.words import Words


class Strip(NamedTuple):
    """Whether a control token removes the white space on its left or on its right."""

    left: bool
    right: bool


class Backends(NamedTuple):
    """Tokenizers of the `tokenizers` library, each with the whole vocabulary."""

    recognising: hf.Tokenizer
    """The names of control tokens are control tokens."""
    plain: hf.Tokenizer
    """The names of control tokens are ordinary text."""
    continued: hf.Tokenizer
    """Like `plain`, for text after other text."""
    after_control: hf.Tokenizer
    """Like `plain`, for text after a control token."""


class Prefix(Enum):
    """Where the tokenizer adds a space that the text does not have."""

    NONE = "nothing"
    FIRST = "the start of a text"
    EVERY = "each stretch between control tokens"


class Prepare(Protocol):
    """Prepares a text for the library's tokenizer."""

    def __call__(self, text: str, *, continued: bool = False) -> str:
        """continued: for text after other text."""


class Prepared(NamedTuple):
    """Encodes texts without control tokens, each prepared first."""

    prepare: Prepare
    encode: Callable[[Sequence[str]], list[list[int]]]
    """Ids of prepared texts."""
    after_control: Prefix
    """EVERY: text after a control token gets a space, as at the start of a text."""


class Tables(NamedTuple):
    """Models of the `tokenizers` library, from which the tokenizers are made."""

    recognising: models.Model
    plain: models.Model
    """Finds no control token in ordinary text. Often the same object as `recognising`."""


def broken_merges(
    error: Exception, ids: Mapping[str, int], merges: Iterable[tuple[str, str]]
) -> ModelFileError:
    """The error for merges that the library refused with `error`."""
    for left, right in merges:
        for token in (left, right, left + right):
            if token not in ids:
                line, missing = f"{left} {right}"[:40], token[:40]
                return ModelFileError(
                    f"tokenizer.ggml.merges: {line!r} needs the token {missing!r}, which is not in "
                    "tokenizer.ggml.tokens"
                )
    return ModelFileError(f"tokenizer.ggml.merges: {one_line(error)}")


def hidden(ids: Mapping[str, int], names: Collection[str]) -> dict[str, int]:
    """A vocabulary in which no text contains the tokens `names`.

    They get a space in front. Text that reaches the model has no spaces: each was replaced by
    another character, or the text was cut there.
    """
    return {f" {token}" if token in names else token: i for token, i in ids.items()}


def library_ids(backend: hf.Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts. Raises InvalidField for a text with a lone surrogate."""
    # encode_batch_fast() lets other threads run. encode() blocks them for a second per megabyte.
    try:
        found = backend.encode_batch_fast(list(texts), add_special_tokens=False)
    except TypeError:
        check_unicode(texts)
        raise
    return [one.ids for one in found]


def check_unicode(texts: Iterable[str]) -> None:
    """Raise InvalidField for a text with a lone surrogate."""
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidField(
                "prompt", text, f"character {error.start} is a lone surrogate, not Unicode text"
            ) from None


@record()
class Parts:
    """The pieces of a `Tokenizer`."""

    backends: Callable[[], Backends]
    """Makes the backends at its first call, or returns them if they exist."""
    token_bytes: Callable[[int], bytes]
    vocab_size: int
    special_tokens: dict[str, int]
    bos_token_id: int | None
    eos_token_id: int | None
    """The one that the files name."""
    eos_token_ids: frozenset[int]
    add_bos: bool
    strips_leading_space: bool
    strips: dict[int, Strip] = field(default_factory=dict)
    """Id -> what it strips, for control tokens that remove white space."""
    whole_words: frozenset[int] = frozenset()
    """Ids of control tokens whose names are found in no longer word."""
    words: Words | None = None
    """Encodes short texts before the backends are made."""
    frame: Frame | None = None
    """What a text that stands alone has around it; None: the begin-of-text token where the model
    wants one."""
    prepared: Prepared | None = None
    """Encodes all texts; then there are no backends."""
