"""Byte-level BPE (as in GPT-2): one printable character stands for each byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tokenizers as hf
from tokenizers import models

from mlc_llm.tokenizers.parts import Prefix, Tables, broken_merges, hidden
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary


def _byte_characters() -> list[str]:
    """GPT-2's table: a printable Latin-1 byte is its own character, the others start at 256."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in shown else next(moved)) for byte in range(256)]


CHARACTERS = _byte_characters()
BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}


def spelled(text: str) -> str:
    """The UTF-8 bytes of a text, written as characters of the table."""
    return "".join(CHARACTERS[byte] for byte in text.encode())


class TextList(Protocol):
    """Texts by index: a list, or the texts of a flat vocabulary."""

    def __getitem__(self, index: int, /) -> str: ...


class TokenList(Protocol):
    """The part of a vocabulary, flat or not, that `token_bytes` needs."""

    @property
    def tokens(self) -> TextList: ...

    @property
    def kinds(self) -> Sequence[int]: ...


def token_bytes(vocabulary: TokenList, token_id: int) -> bytes:
    """The bytes that a token stands for. An added token stands for its own text."""
    token = vocabulary.tokens[token_id]
    if vocabulary.kinds[token_id] not in (TokenKind.CONTROL, TokenKind.USER_DEFINED):
        try:
            return bytes([BYTES[character] for character in token])
        except KeyError:  # not written in the table: the token is its own text
            pass
    return token.encode()


def tables(vocabulary: Vocabulary) -> Tables:
    """The merge table. Raises `ModelFileError` if a merge needs a token that does not exist,
    `UnsupportedModel` for an unknown word rule."""
    ids = _ids(vocabulary)
    names = _names_taken_whole(vocabulary)
    whole = _bpe(vocabulary, ids, vocabulary.usable_merges)
    if not names:
        return Tables(whole, whole)
    merges = [pair for pair in vocabulary.usable_merges if names.isdisjoint(pair)]
    return Tables(whole, _bpe(vocabulary, hidden(ids, names), merges))


def _bpe(vocabulary: Vocabulary, ids: dict[str, int], merges: list[tuple[str, str]]) -> models.BPE:
    whole = vocabulary.word_rule.takes_whole_words
    try:
        return models.BPE(vocab=ids, merges=merges, fuse_unk=False, ignore_merges=whole)
    except Exception as error:  # the library raises bare exceptions
        raise broken_merges(error, ids, merges) from None


def _names_taken_whole(vocabulary: Vocabulary) -> set[str]:
    """Names of control tokens that are one word in ordinary text, if the rule takes whole words."""
    rule = vocabulary.word_rule
    if not rule.takes_whole_words:
        return set()
    return {name for name in vocabulary.control if rule.words(name) == [name]}


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Each token, written in the table, -> its id."""
    tokens = vocabulary.tokens
    strange = set("".join(tokens)) - BYTES.keys()
    if strange:
        literal = {**vocabulary.control, **vocabulary.user_defined}
        tokens = [
            token if strange.isdisjoint(token) or token in literal else _respelled(token)
            for token in tokens
        ]
    return dict(zip(tokens, range(len(tokens)), strict=True))


def _respelled(token: str) -> str:
    return token if token.isascii() else spelled(token)


def is_spelled(vocabulary: Vocabulary) -> bool:
    """Whether the file writes every token in the table, as its merges do."""
    return _ids(vocabulary).keys() == set(vocabulary.tokens)


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is cut into words. A text after other text is cut like any other."""
    rule = vocabulary.word_rule
    backend.pre_tokenizer = rule.cutter
    if rule.normalizer is not None:
        backend.normalizer = rule.normalizer


def prefix(vocabulary: Vocabulary) -> Prefix:
    """No text gets a space in front."""
    return Prefix.NONE
