"""WordPiece (as in BERT): a word is cut into the longest tokens, from left to right.

In a GGUF file, a token that begins a word has "▁" in front, and a token inside a word has nothing
in front. In the `tokenizers` library, the first has nothing in front and the second has "##".
"""

from __future__ import annotations

from collections.abc import Collection

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers import sentencepiece
from mlc_llm.tokenizers.parts import Prefix, Tables, hidden
from mlc_llm.tokenizers.sentencepiece import SPACE
from mlc_llm.tokenizers.vocabulary import Vocabulary

__all__ = ["CONTINUES", "finish", "prefix", "tables", "token_bytes"]

CONTINUES = "##"
_LONGEST_WORD = 100
"""Characters. A longer word is unknown, as in BERT's own tokenizer."""


def tables(vocabulary: Vocabulary) -> Tables:
    """Raises `ModelFileError` if the file names no unknown token."""
    if "unknown_token_id" not in vocabulary.ids:
        raise ModelFileError("tokenizer.ggml.unknown_token_id is missing: the tokenizer needs it")
    names = vocabulary.control
    whole = set(vocabulary.tokens) if vocabulary.marks_continuations else names
    ids = {_spelled(token, whole): i for i, token in enumerate(vocabulary.tokens)}
    unknown = vocabulary.tokens[vocabulary.ids["unknown_token_id"]]
    return Tables(_table(ids, unknown), _table(hidden(ids, names), f" {unknown}"))


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes that a token stands for."""
    token = vocabulary.tokens[token_id]
    if not vocabulary.marks_continuations or token in vocabulary.control:
        return sentencepiece.token_bytes(vocabulary, token_id)
    return token[2:].encode() if token.startswith(CONTINUES) else f" {token}".encode()


def _spelled(token: str, whole: Collection[str]) -> str:
    """A token as the library writes it; whole: tokens that are written so already."""
    if token in whole:
        return token
    return token.removeprefix(SPACE) if token.startswith(SPACE) else CONTINUES + token


def _table(ids: dict[str, int], unknown: str) -> models.WordPiece:
    return models.WordPiece(
        vocab=ids,
        unk_token=unknown,
        max_input_chars_per_word=_LONGEST_WORD,
        continuing_subword_prefix=CONTINUES,
    )


def prefix(vocabulary: Vocabulary) -> Prefix:
    """No space is added: no token contains a space."""
    return Prefix.NONE


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is prepared, as in BERT's own tokenizer."""
    backend.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=True,
        strip_accents=vocabulary.strip_accents,
        lowercase=vocabulary.lowercase,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
