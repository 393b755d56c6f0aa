"""Byte-level BPE (GPT-2's kind): each byte is spelled as one printable character."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import tokenizers as hf
from tokenizers import models, pre_tokenizers

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary


def _byte_characters() -> list[str]:
    """GPT-2's table: printable Latin-1 bytes stand for themselves, the rest move past 255."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    moved = iter(range(256, 512))
    return [chr(byte if byte in shown else next(moved)) for byte in range(256)]


CHARACTERS = _byte_characters()
BYTES = {character: byte for byte, character in enumerate(CHARACTERS)}

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE = r"[^\r\n\p{L}\p{N}]?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_REST}"
_GPT4O = (
    rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDINGS}|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDINGS}"
    rf"|\p{{N}}{{1,3}}{_REST}"
)

SPLITS: dict[str, str | None] = {
    **dict.fromkeys(("default", "gpt-2", "phi-2", "mpt", "olmo", "smollm")),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx", "smaug-bpe"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), _QWEN2),
    "tekken": _TEKKEN,
    **dict.fromkeys(("gpt-4o", "llama4"), _GPT4O),
}
"""`tokenizer.ggml.pre` to the expression that cuts text into words; None is GPT-2's own.

As Transformers reads GGUF files, to which ids are held equal. For `smollm` the model was trained
with digits cut off first, and llama.cpp does so: "  1" is then two tokens and not three.
"""


def spelled(text: str) -> str:
    """UTF-8 bytes of a text in the table's characters."""
    return "".join(CHARACTERS[byte] for byte in text.encode())


class Spelled(Protocol):
    """What is read of a vocabulary, flat or not."""

    @property
    def tokens(self) -> Sequence[str]: ...

    @property
    def kinds(self) -> Sequence[int]: ...


def token_bytes(vocabulary: Spelled, token_id: int) -> bytes:
    """The bytes that a token stands for; added tokens stand for their own text."""
    token = vocabulary.tokens[token_id]
    if vocabulary.kinds[token_id] not in (TokenKind.CONTROL, TokenKind.USER_DEFINED):
        try:
            return bytes([BYTES[character] for character in token])
        except KeyError:  # not spelled in the table: the token means its own text
            pass
    return token.encode()


def bpe(vocabulary: Vocabulary) -> models.BPE:
    """The merge table. Raises `ModelFileError` for a merge of tokens that are not there."""
    try:
        return models.BPE(vocab=_ids(vocabulary), merges=vocabulary.usable_merges, fuse_unk=False)
    except Exception as error:  # the library raises bare exceptions
        raise ModelFileError(f"tokenizer.ggml.merges: {error}") from None


def _ids(vocabulary: Vocabulary) -> dict[str, int]:
    """Each token, spelled in the table, to its id."""
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
    """Whether every token stands in the file as the merges spell it."""
    return _ids(vocabulary).keys() == set(vocabulary.tokens)


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is cut up before the merges; a continued text is cut like any other."""
    backend.pre_tokenizer = cutter(vocabulary.pre)


def cutter(pre: str) -> pre_tokenizers.PreTokenizer:
    """What cuts a text into words and spells them in the table, by `tokenizer.ggml.pre`."""
    if pre not in SPLITS:
        known = ", ".join(SPLITS)
        raise UnsupportedModel(f"tokenizer.ggml.pre = {pre!r} is not supported; supported: {known}")
    split = SPLITS[pre]
    if split is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(hf.Regex(split), behavior="isolated")
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([cut, spell])
