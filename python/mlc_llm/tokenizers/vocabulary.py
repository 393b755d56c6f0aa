"""Reads and checks the vocabulary of a GGUF file: keys `tokenizer.ggml.*` of the specification."""

from __future__ import annotations

from collections.abc import Container, Mapping
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import TypeVar, cast

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.record import record
from mlc_llm.tokenizers.word_rules import BEGINS, WordRule, word_rule

MAX_TOKENS = 4 * 2**20
MAX_MERGES = 4 * MAX_TOKENS
NO_ID = 2**32 - 1
"""What converters write for the id -1: there is no such token."""
_PREFIX = "tokenizer.ggml."
_PADDING = "padding_token_id"

Metadata = Mapping[str, object]
"""The metadata of a GGUF file: key -> value."""
_Number = TypeVar("_Number", int, float)

_NEEDS = {
    "gpt2": "merges",
    "llama": "scores",
    "gemma4": "merges",
    "bert": "",
    "t5": "scores",
    "rwkv": "",
}
"""Values of `tokenizer.ggml.model`, and the list that each needs besides its tokens."""
_SPELLED_WITH_MARK = ("llama", "gemma4")


class TokenKind(IntEnum):
    """Values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


END_TEXTS = frozenset(
    {
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|im_end|>",
        "<|end|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|eot|>",
        "<|eom|>",
        "<|return|>",
        "<|call|>",
        "<end_of_turn>",
        "<|end_of_turn|>",
        "<end_of_utterance>",
        "<|endofturn|>",
        "<EOT>",
        "_<EOT>",
        "< EOT >",
        "</s>",
        "<eos>",
        "<｜end▁of▁sentence｜>",
    }
)
"""Control tokens that always end an answer. Most files name only one of their end tokens."""


def end_texts(control: Container[str]) -> frozenset[str]:
    """The control tokens of a vocabulary that always end an answer."""
    # In the channels of gpt-oss, <|end|> ends one of several messages of an answer.
    in_channels = all(text in control for text in ("<|channel|>", "<|return|>", "<|call|>"))
    return END_TEXTS - {"<|end|>"} if in_channels else END_TEXTS


_END_IDS = ("eos_token_id", "eot_token_id", "eom_token_id")


@record()
class Vocabulary:
    """The vocabulary of a model file. Every id is inside it, and the lists have fitting lengths."""

    model: str
    """`gpt2` (byte-level BPE), `llama` or `gemma4` (SentencePiece BPE), `bert` (WordPiece), `t5`
    (Unigram), `rwkv` (longest match)."""
    pre: str
    """Name of the word rule, which cuts text into words (byte-level only)."""
    architecture: str
    tokens: list[str]
    kinds: list[int]
    scores: list[float] | None
    merges: list[tuple[str, str]] | None
    ids: dict[str, int]
    """`bos_token_id`, `eos_token_id` and others that the file has."""
    add_bos: bool
    add_space_prefix: bool
    merges_spaces: bool = False
    """Several spaces count as one (Unigram only)."""
    characters: bytes = b""
    """SentencePiece's table that replaces characters (Unigram only)."""
    lowercase: bool = False
    """Text is changed to lower case first (WordPiece only)."""
    strip_accents: bool = False
    """Accents are removed first (WordPiece only)."""
    marks_continuations: bool = False
    """Tokens inside a word begin with "##", as in vocab.txt; else tokens at the start of a word
    begin with "▁" (WordPiece only)."""
    rule: WordRule | None = None
    """The word rule itself, if it has no name (byte-level only)."""

    @property
    def word_rule(self) -> WordRule:
        """How text is cut into words. Raises UnsupportedModel for an unknown name."""
        return self.rule or word_rule(self.pre, self.architecture)

    @cached_property
    def control(self) -> dict[str, int]:
        """Text of each control token, and of each token that a key names, -> its id."""
        found = self._of_kind(TokenKind.CONTROL)
        for name in ("bos_token_id", "eos_token_id", "unknown_token_id", _PADDING):
            i = self.ids.get(name)
            if i is not None and self.kinds[i] != TokenKind.USER_DEFINED:
                found.setdefault(self.tokens[i], i)
        return found

    @cached_property
    def user_defined(self) -> dict[str, int]:
        """Text of each user-defined token -> its id. Such a token is matched as a whole anywhere in
        a text."""
        return self._of_kind(TokenKind.USER_DEFINED)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Every token that ends an answer."""
        named = {self.ids[name] for name in _END_IDS if name in self.ids}
        texts = end_texts(self.control)
        return frozenset(named | {i for text, i in self.control.items() if text in texts})

    @cached_property
    def usable_merges(self) -> list[tuple[str, str]]:
        """The merges, except those that make a control token: its name in ordinary text must stay
        text."""
        merges = self.merges or []
        pairs = {(name[:i], name[i:]) for name in self.control for i in range(1, len(name))}
        if pairs.isdisjoint(merges):
            return merges
        return [pair for pair in merges if pair not in pairs]

    def _of_kind(self, kind: int) -> dict[str, int]:
        kind = int(kind)  # a comparison with an IntEnum takes three times as long
        return {self.tokens[i]: i for i, one in enumerate(self.kinds) if one == kind}

    @classmethod
    def from_metadata(cls, metadata: Metadata) -> Vocabulary:
        """Raises `ModelFileError`, which names the broken key, or `UnsupportedModel` for an unknown
        kind of tokenizer."""
        model = _string(metadata, "model", None)
        if model not in _NEEDS:
            known = ", ".join(_NEEDS)
            raise UnsupportedModel(
                f"tokenizer.ggml.model = {model!r} is not supported; supported: {known}"
            )
        tokens = _tokens(metadata)
        scores = _numbers(metadata, "scores", len(tokens), float)
        kinds = _numbers(metadata, "token_type", len(tokens), int)
        merges = _merges(metadata)
        needed = "merges" if merges is not None and model == "llama" else _NEEDS[model]
        if needed and (merges if needed == "merges" else scores) is None:
            raise ModelFileError(f"{_PREFIX}{needed} is missing: the tokenizer needs it")
        pre = _string(metadata, "pre", "default")
        bos_by_default = model in _SPELLED_WITH_MARK or pre in BEGINS
        lowercase = _flag(metadata, "normalizer.lowercase", True)
        return cls(
            model=model,
            pre=pre,
            architecture=str(metadata.get("general.architecture", "")),
            tokens=tokens,
            kinds=kinds if kinds is not None else [int(TokenKind.NORMAL)] * len(tokens),
            scores=scores,
            merges=merges,
            ids=_named_ids(metadata, len(tokens)),
            add_bos=_flag(metadata, "add_bos_token", bos_by_default),
            add_space_prefix=_flag(metadata, "add_space_prefix", model in ("llama", "t5")),
            merges_spaces=_flag(metadata, "remove_extra_whitespaces", False),
            characters=_characters(metadata),
            lowercase=lowercase,
            strip_accents=_flag(metadata, "normalizer.strip_accents", lowercase),
        )


def _string(metadata: Metadata, name: str, default: str | None) -> str:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, str):
        what = "is missing" if value is None else f"should be text, not {type(value).__name__}"
        raise ModelFileError(f"{_PREFIX}{name} {what}")
    return value


def _flag(metadata: Metadata, name: str, default: bool) -> bool:
    value = metadata.get(_PREFIX + name, default)
    if not isinstance(value, bool):
        raise ModelFileError(f"{_PREFIX}{name} = {str(value)[:40]!r} should be true or false")
    return value


def _strings(metadata: Metadata, name: str, most: int) -> list[str] | None:
    value = metadata.get(_PREFIX + name)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > most:
        raise ModelFileError(f"{_PREFIX}{name} should be a list of at most {most} texts")
    texts = cast("list[str]", value)
    try:
        "\n".join(texts).encode()  # fails unless all items are texts and all texts are Unicode
    except (TypeError, UnicodeEncodeError) as error:
        raise ModelFileError(f"{_PREFIX}{name}: {str(error)[:120]}") from None
    return texts


def _characters(metadata: Metadata) -> bytes:
    value = metadata.get(_PREFIX + "precompiled_charsmap", [])
    if not isinstance(value, list) or not all(isinstance(one, int) for one in value):
        raise ModelFileError(f"{_PREFIX}precompiled_charsmap should be a list of bytes")
    return bytes(one & 255 for one in value)


def _tokens(metadata: Metadata) -> list[str]:
    tokens = _strings(metadata, "tokens", MAX_TOKENS)
    if not tokens:
        raise ModelFileError(f"{_PREFIX}tokens is missing or empty: the file has no vocabulary")
    return tokens


def _numbers(
    metadata: Metadata, name: str, count: int, kind: type[_Number]
) -> list[_Number] | None:
    value = metadata.get(_PREFIX + name)
    if value is None:
        return None
    numbers = value if isinstance(value, list) else []
    kinds = set(map(type, numbers))
    if len(numbers) != count or not all(issubclass(one, kind) for one in kinds):
        raise ModelFileError(f"{_PREFIX}{name} should hold {count} values of type {kind.__name__}")
    return cast("list[_Number]", numbers)


def _merges(metadata: Metadata) -> list[tuple[str, str]] | None:
    lines = _strings(metadata, "merges", MAX_MERGES)
    if lines is None:
        return None
    pairs = [tuple(line.split(" ")) for line in lines]
    if set(map(len, pairs)) - {2} or "" in chain.from_iterable(pairs):
        i, line = next((i, line) for i, line in enumerate(lines) if not _is_pair(line))
        raise ModelFileError(f"{_PREFIX}merges[{i}] = {line[:40]!r} should be two tokens")
    return cast("list[tuple[str, str]]", pairs)


def _is_pair(line: str) -> bool:
    words = line.split(" ")
    return len(words) == 2 and all(words)


def _named_ids(metadata: Metadata, count: int) -> dict[str, int]:
    """A padding token outside the vocabulary counts as none: it is never read."""
    ids = {}
    for name in (*_END_IDS, "bos_token_id", "unknown_token_id", _PADDING):
        value = metadata.get(_PREFIX + name)
        is_outside = type(value) is int and value >= count
        if value is None or value == NO_ID or (name == _PADDING and is_outside):
            continue
        if not isinstance(value, int) or not 0 <= value < count:
            raise ModelFileError(f"{_PREFIX}{name} = {str(value)[:40]} should be 0 to {count - 1}")
        ids[name] = value
    return ids
