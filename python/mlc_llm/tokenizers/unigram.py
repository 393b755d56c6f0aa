"""Unigram, the second kind of SentencePiece: it cuts a text in the most likely way."""

from __future__ import annotations

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.parts import Prefix, Tables
from mlc_llm.tokenizers.sentencepiece import SPACE, token_bytes
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary

__all__ = ["finish", "prefix", "tables", "token_bytes"]


def tables(vocabulary: Vocabulary) -> Tables:
    """Raises `ModelFileError` if the file names no unknown token."""
    if "unknown_token_id" not in vocabulary.ids:
        raise ModelFileError("tokenizer.ggml.unknown_token_id is missing: the tokenizer needs it")
    return Tables(_table(vocabulary, find_names=True), _table(vocabulary, find_names=False))


def _table(vocabulary: Vocabulary, *, find_names: bool) -> models.Unigram:
    """The model. Tokens that ordinary text must not contain are hidden by a space in front. They
    get the lowest score of the other tokens, because the library computes the score of unknown text
    from the lowest score of all."""
    scores, names = vocabulary.scores, vocabulary.control
    assert scores is not None
    usual = {int(TokenKind.NORMAL), int(TokenKind.BYTE)}
    every = zip(scores, vocabulary.kinds, strict=True)
    lowest = min((score for score, kind in every if kind in usual), default=0.0)
    pieces = []
    for token, score, kind in zip(vocabulary.tokens, scores, vocabulary.kinds, strict=True):
        seen = kind == TokenKind.USER_DEFINED or kind in usual or (token in names and find_names)
        pieces.append((token if seen else f" {token}", score if kind in usual else lowest))
    return models.Unigram(
        pieces,
        vocabulary.ids["unknown_token_id"],
        byte_fallback=TokenKind.BYTE in vocabulary.kinds,
    )


def prefix(vocabulary: Vocabulary) -> Prefix:
    """Where a space is added. If several spaces count as one, each word gets one in front."""
    every = vocabulary.add_space_prefix or vocabulary.merges_spaces
    return Prefix.EVERY if every else Prefix.NONE


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is prepared. Raises `ModelFileError` for a broken character table."""
    if vocabulary.characters:
        try:
            backend.normalizer = normalizers.Precompiled(vocabulary.characters)
        except Exception as error:  # the library raises bare exceptions
            name = "tokenizer.ggml.precompiled_charsmap"
            raise ModelFileError(f"{name}: {error}") from None
    scheme = "never" if continued or prefix(vocabulary) is Prefix.NONE else "always"
    words = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme=scheme)
    split = [pre_tokenizers.WhitespaceSplit()] if vocabulary.merges_spaces else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*split, words])
