"""Reads SentencePiece's `tokenizer.model`.

Format: `sentencepiece_model.proto` of https://github.com/google/sentencepiece. Numbers of its
fields stand in this file as in that one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.plain_file import read_plain, reason
from mlc_llm.tokenizers.protobuf import Message, Value
from mlc_llm.tokenizers.sentencepiece import check_lengths
from mlc_llm.tokenizers.vocabulary import MAX_TOKENS, TokenKind

MAX_BYTES = 256 * 2**20
UNIGRAM, BPE = 1, 2
Piece = tuple[str, float, int]
"""Text, score, kind."""
_SCORE = struct.Struct("<f")
_ALGORITHMS = {UNIGRAM: "unigram", BPE: "bpe", 3: "word", 4: "char"}


@dataclass
class SentencePieceModel:
    """A model file, with the defaults of the format."""

    tokens: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    kinds: list[int] = field(default_factory=list)
    algorithm: int = UNIGRAM
    bos_id: int = 1
    eos_id: int = 2
    pad_id: int = -1
    spaces_at_end: bool = False
    """The mark of a space stands at the end of a word."""
    characters: bytes = b""
    """The table that replaces characters; empty: none."""
    adds_space: bool = True
    """Before the first word."""
    merges_spaces: bool = True
    marks_spaces: bool = True
    begins: bool = False
    """Texts begin with bos, though it is no BPE."""
    changes_answers: bool = False
    """There is a table for decoding."""

    @property
    def unknown_id(self) -> int:
        return self.kinds.index(TokenKind.UNKNOWN)


def read_model(path: Path) -> SentencePieceModel:
    """Raises ModelFileError, which names the field, and UnsupportedModel for a kind of model that
    cannot be computed."""
    found = SentencePieceModel()
    try:
        _read(found, memoryview(read_plain(path, MAX_BYTES)))
        _check(found)
    except OSError as error:
        raise ModelFileError(f"{path}: {reason(error)}") from None
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from None
    return found


def _read(found: SentencePieceModel, data: memoryview) -> None:
    whole = Message(data, "the file")
    for number, value in whole.fields():
        if number == 1:
            _read_piece(found, whole.bytes("pieces", value))
        elif number == 2:
            _read_trainer(found, Message(whole.bytes("trainer_spec", value), "trainer_spec"))
        elif number == 3:
            name = "normalizer_spec"
            _read_normalizer(found, Message(whole.bytes(name, value), name))
        elif number == 5:
            name = "denormalizer_spec"
            inner = Message(whole.bytes(name, value), name)
            found.changes_answers = any(one == 2 and _length(v) for one, v in inner.fields())


def _length(value: Value) -> int:
    return len(value) if isinstance(value, memoryview) else 0


def _read_piece(found: SentencePieceModel, data: memoryview) -> None:
    piece = _usual_piece(bytes(data)) or _any_piece(data, f"pieces[{len(found.tokens)}]")
    if len(found.tokens) == MAX_TOKENS:
        raise ModelFileError(f"pieces: more than {MAX_TOKENS}")
    found.tokens.append(piece[0])
    found.scores.append(piece[1])
    found.kinds.append(piece[2])


def _usual_piece(data: bytes) -> Piece | None:
    """A piece that is written as nearly all are: a short text, a score, and a type unless it is
    NORMAL. None if it is not. Vocabularies have so many pieces that this matters."""
    end = data[1] + 2 if len(data) > 7 else 0
    kind = 1 if len(data) == end + 5 else data[-1] if len(data) == end + 7 else 0
    if not 0 < kind < 7 or not 2 < end < 130 or data[0] != 0x0A or data[end] != 0x15:
        return None
    if len(data) == end + 7 and data[end + 5] != 0x18:
        return None
    (score,) = _SCORE.unpack_from(data, end + 1)
    try:
        return (data[2:end].decode(), score, kind) if score - score == 0 else None
    except UnicodeDecodeError:
        return None


def _any_piece(data: memoryview, name: str) -> Piece:
    message = Message(data, name)
    text, score, kind = "", 0.0, int(TokenKind.NORMAL)
    for number, value in message.fields():
        if number == 1:
            text = message.text("piece", value)
        elif number == 2:
            score = message.float("score", value)
        elif number == 3:
            kind = message.number("type", value)
            if kind not in set(TokenKind):
                raise message.error("type", kind, "1 to 6")
    if not text:
        raise ModelFileError(f"{message.name}.piece is missing or empty")
    return text, score, kind


def _read_trainer(found: SentencePieceModel, message: Message) -> None:
    for number, value in message.fields():
        if number == 3:
            found.algorithm = message.number("model_type", value)
        elif number == 24:
            found.spaces_at_end = bool(message.number("treat_whitespace_as_suffix", value))
        elif number == 41:
            found.bos_id = message.number("bos_id", value)
        elif number == 42:
            found.eos_id = message.number("eos_id", value)
        elif number == 43:
            found.pad_id = message.number("pad_id", value)


def _read_normalizer(found: SentencePieceModel, message: Message) -> None:
    for number, value in message.fields():
        if number == 2:
            found.characters = bytes(message.bytes("precompiled_charsmap", value))
        elif number == 3:
            found.adds_space = bool(message.number("add_dummy_prefix", value))
        elif number == 4:
            found.merges_spaces = bool(message.number("remove_extra_whitespaces", value))
        elif number == 5:
            found.marks_spaces = bool(message.number("escape_whitespaces", value))


def _check(found: SentencePieceModel) -> None:
    if not found.tokens:
        raise ModelFileError("pieces is missing: the file has no vocabulary")
    if found.kinds.count(TokenKind.UNKNOWN) != 1:
        count = found.kinds.count(TokenKind.UNKNOWN)
        raise ModelFileError(f"pieces: {count} pieces of type UNKNOWN, one is needed")
    check_lengths("pieces", found.tokens)
    places = {token: i for i, token in enumerate(found.tokens)}  # of equal ones, the last
    for i, token in enumerate(found.tokens if len(places) < len(found.tokens) else ()):
        if places[token] != i:
            last = f"pieces[{places[token]}].piece"
            raise ModelFileError(f"{last} = {token[:40]!r} is there twice")
    for name in ("bos_id", "eos_id", "pad_id"):
        value = getattr(found, name)
        if value >= len(found.tokens):
            most = len(found.tokens) - 1
            raise ModelFileError(f"trainer_spec.{name} = {value} should be at most {most}")
    if found.algorithm not in (UNIGRAM, BPE):
        kind = _ALGORITHMS.get(found.algorithm, str(found.algorithm))
        raise UnsupportedModel(
            f"trainer_spec.model_type = {kind} is not supported; supported: unigram, bpe"
        )
    for name, wrong in (
        ("trainer_spec.treat_whitespace_as_suffix = true", found.spaces_at_end),
        ("normalizer_spec.escape_whitespaces = false", not found.marks_spaces),
        ("denormalizer_spec.precompiled_charsmap", found.changes_answers),
    ):
        if wrong:
            raise UnsupportedModel(f"{name} is not supported")
