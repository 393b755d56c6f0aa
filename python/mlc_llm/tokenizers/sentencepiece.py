"""SentencePiece's BPE: spaces are "▁", text outside the vocabulary falls back to byte tokens."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary

SPACE = "▁"
_GEMMA = ("gemma", "gemma2", "gemma3")


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


def bpe(vocabulary: Vocabulary) -> models.BPE:
    """The merge table, from the file or recovered from its scores."""
    tokens = _respelled(vocabulary)
    ids = {token: i for i, token in enumerate(tokens)}
    control = vocabulary.control
    merges = vocabulary.merges
    if merges is None:
        merges = recovered_merges(ids, _priorities(vocabulary, tokens), control)
    else:
        merges = vocabulary.usable_merges
    unknown = {"unk_token": "<unk>"} if vocabulary.architecture in _GEMMA else {}
    try:
        return models.BPE(vocab=ids, merges=merges, fuse_unk=True, byte_fallback=True, **unknown)
    except Exception as error:  # the library raises bare exceptions
        raise ModelFileError(f"tokenizer.ggml.merges: {error}") from None


def finish(backend: hf.Tokenizer, vocabulary: Vocabulary, *, continued: bool) -> None:
    """Set how text is prepared. A continued text (not at the start) never gets the first space."""
    if vocabulary.architecture in _GEMMA:
        backend.normalizer = normalizers.Replace(" ", SPACE)
        backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    elif vocabulary.architecture == "phi3" and vocabulary.add_space_prefix:
        # This model was trained with a space before every stretch of text between control tokens.
        backend.normalizer = normalizers.Sequence(
            [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]
        )
    else:
        scheme = "first" if vocabulary.add_space_prefix and not continued else "never"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(
            replacement=SPACE, prepend_scheme=scheme, split=False
        )


def recovered_merges(
    ids: Mapping[str, int], priorities: Mapping[str, float], control: Mapping[str, int]
) -> list[tuple[str, str]]:
    """All ways to make a token of two others, best token first.

    Among tokens of equal priority the longer left part comes first, then the longer right part,
    which is the order Transformers uses. No merge makes a control token: its name in ordinary
    text must stay text.
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
    """Gemma's files write tokens of several spaces as spaces, all others with "▁"."""
    if vocabulary.architecture not in _GEMMA:
        return vocabulary.tokens
    return [
        SPACE * len(token) if " " in token and not token.strip() else token
        for token in vocabulary.tokens
    ]


def _priorities(vocabulary: Vocabulary, tokens: list[str]) -> dict[str, float]:
    """Gemma's scores do not follow the order of its merges; the order of the tokens does."""
    if vocabulary.architecture in _GEMMA:
        return {token: -float(i) for i, token in enumerate(tokens)}
    return dict(zip(tokens, vocabulary.scores or (), strict=True))
