"""BPE of SentencePiece: a space is "▁", and text outside the vocabulary becomes byte tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.parts import Prefix, Tables, broken_merges
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary

SPACE = "▁"
_BLANK = SPACE + "\t\n"
_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3n", "gemma-embedding")
_MOST_SQUARES = 1 << 27
"""The sum of the squares of tokens' lengths. Vocabularies of 256 thousand tokens have 2^24."""
_PREFIX_FIRST = "[INST]"
"""A control token of Mistral's vocabularies, version 3 and later. These add a space only at the
start of a text. Older ones, like Llama's, add one before each piece of text."""


def token_bytes(vocabulary: Vocabulary, token_id: int) -> bytes:
    """The bytes that a token stands for."""
    token, kind = vocabulary.tokens[token_id], vocabulary.kinds[token_id]
    if kind == TokenKind.CONTROL:
        return token.encode()
    return byte_of(token) or token.replace(SPACE, " ").encode()


def byte_of(token: str) -> bytes | None:
    """The byte of a fallback token `<0xNN>`."""
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return None


def tables(vocabulary: Vocabulary) -> Tables:
    """The merge table, from the file or computed from its scores.

    Raises `ModelFileError` if a merge needs a token that does not exist.
    """
    tokens = _respelled(vocabulary)
    ids = {token: i for i, token in enumerate(tokens)}
    merges = vocabulary.usable_merges
    if vocabulary.merges is None:
        merges = recovered_merges(ids, _priorities(vocabulary, tokens), vocabulary.control)
    unknown = {"unk_token": "<unk>"} if _is_gemma(vocabulary) else {}
    try:
        made = models.BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True, **unknown)
    except Exception as error:  # the library raises bare exceptions
        raise broken_merges(error, ids, merges) from None
    return Tables(made, made)


def prefix(vocabulary: Vocabulary) -> Prefix:
    """Where a space is added."""
    if not vocabulary.add_space_prefix or _is_gemma(vocabulary):
        return Prefix.NONE
    return Prefix.FIRST if _PREFIX_FIRST in vocabulary.control else Prefix.EVERY


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is prepared. continued: for text after other text, which gets no space."""
    kind = Prefix.NONE if continued else prefix(vocabulary)
    if kind is Prefix.FIRST:
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme="first", split=False
        )
        return
    written = normalizers.Replace(" ", SPACE)
    first = [normalizers.Prepend(SPACE)] if kind is Prefix.EVERY else []
    backend.normalizer = normalizers.Sequence([*first, written])
    if _is_gemma(vocabulary):
        backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")


def check_lengths(field: str, tokens: Iterable[str]) -> None:
    """Raise ModelFileError for tokens whose beginnings and ends are too many to look at."""
    if sum(len(token) ** 2 for token in tokens) > _MOST_SQUARES:
        raise ModelFileError(f"{field}: the tokens are too long and too many")


def recovered_merges(
    ids: Mapping[str, int], priorities: Mapping[str, float], control: Mapping[str, int]
) -> list[tuple[str, str]]:
    """All pairs of tokens that make a third one; the token with the highest priority first.

    For tokens of equal priority, the longer left part comes first, then the longer right part, as
    in Transformers. No merge makes a control token: its name in ordinary text must stay text.
    """
    merges: list[tuple[str, str]] = []
    ranked = sorted(priorities, key=priorities.__getitem__, reverse=True)
    for _, group in itertools.groupby(ranked, priorities.__getitem__):
        pairs = [
            (token[:cut], token[cut:])
            for token in group
            if token not in control
            for cut in range(len(token) - 1, 0, -1)
            if token[:cut] in ids and token[cut:] in ids
        ]
        pairs.sort(key=lambda pair: (len(pair[0]), len(pair[1])), reverse=True)
        merges += pairs
    return merges


def _respelled(vocabulary: Vocabulary) -> list[str]:
    """Tokens with "▁" for spaces. Gemma's files write tokens of several spaces with spaces."""
    if not _is_gemma(vocabulary):
        return vocabulary.tokens
    return [
        SPACE * len(token) if " " in token and not token.strip() else token
        for token in vocabulary.tokens
    ]


def _priorities(vocabulary: Vocabulary, tokens: list[str]) -> dict[str, float]:
    """Gemma's scores do not give the order of its merges. There the runs of white space come first,
    with equal priority (they are user-defined), then all other tokens in the order of the file."""
    if not _is_gemma(vocabulary):
        return dict(zip(tokens, vocabulary.scores or (), strict=True))
    runs = {tokens[i] for i in vocabulary.user_defined.values() if not tokens[i].strip(_BLANK)}
    return {token: 1.0 if token in runs else -float(i) for i, token in enumerate(tokens)}


def _is_gemma(vocabulary: Vocabulary) -> bool:
    return vocabulary.model == "gemma4" or vocabulary.architecture in _GEMMA
