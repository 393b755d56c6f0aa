"""SentencePiece's second algorithm: it cuts a text in the most likely way.

The sums of scores are rounded as in SentencePiece (`unigram_model.cc`), because some texts have
several ways that are equally likely but for rounding. The `tokenizers` library rounds otherwise.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mlc_llm.errors import ModelFileError
from mlc_llm.tokenizers.sentencepiece import check_lengths
from mlc_llm.tokenizers.vocabulary import TokenKind, Vocabulary

_UNKNOWN_LESS = 10.0
_USER_DEFINED = 0.1
"""The score of a user-defined token, times its bytes less one. The file's score is not used."""


class Unigram:
    """Encodes prepared texts, about a megabyte in two seconds."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """Raises ModelFileError if the vocabulary names no unknown token."""
        if "unknown_token_id" not in vocabulary.ids:
            raise ModelFileError(
                "tokenizer.ggml.unknown_token_id is missing: the tokenizer needs it"
            )
        scores = vocabulary.scores
        assert scores is not None
        self._unknown = vocabulary.ids["unknown_token_id"]
        rows = list(enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True)))
        normal = array("f", (scores[i] for i, (_, kind) in rows if kind == TokenKind.NORMAL))
        self._pieces: dict[str, tuple[int, float]] = {}
        for i, (token, kind) in rows:
            if kind == TokenKind.NORMAL:
                self._pieces[token] = i, scores[i]
            elif kind == TokenKind.USER_DEFINED:
                total = len(token.encode()) * _USER_DEFINED - _USER_DEFINED
                self._pieces[token] = i, array("f", [total])[0]
        self._unknown_score = array("f", [min(normal, default=0.0) - _UNKNOWN_LESS])[0]
        check_lengths("tokenizer.ggml.tokens", self._pieces)
        self._starts = {token[:end] for token in self._pieces for end in range(1, len(token))}
        self._bytes = _byte_ids(vocabulary)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text."""
        return [self._ids(text) for text in texts]

    def _ids(self, text: str) -> list[int]:
        begins, tokens = self._best(text)
        ids: list[int] = []
        at = len(text)
        while at > 0:
            begin, token = begins[at], tokens[at]
            if token != self._unknown:
                ids.append(token)
            elif self._bytes:
                ids += (self._bytes[byte] for byte in reversed(text[begin:at].encode()))
            elif not ids or ids[-1] != token:  # unknown characters in a row are one token
                ids.append(token)
            at = begin
        ids.reverse()
        return ids

    def _best(self, text: str) -> tuple[list[int], list[int]]:
        """Of the best way to each position: where its last token begins, and which one it is."""
        count = len(text)
        begins, tokens = [-1] * (count + 1), [0] * (count + 1)
        best = array("f", bytes(4 * (count + 1)))
        rounded = array("f", [0.0])
        pieces, starts, unknown = self._pieces, self._starts, self._unknown
        for begin in range(count):
            here = best[begin]
            single = False
            end = begin
            while end < count:
                end += 1
                piece = text[begin:end]
                found = pieces.get(piece)
                if found is not None:
                    rounded[0] = here + found[1]
                    if begins[end] < 0 or rounded[0] > best[end]:
                        begins[end], tokens[end], best[end] = begin, found[0], rounded[0]
                    single = single or end == begin + 1
                if piece not in starts:
                    break
            if not single:
                end = begin + 1
                rounded[0] = here + self._unknown_score
                if begins[end] < 0 or rounded[0] > best[end]:
                    begins[end], tokens[end], best[end] = begin, unknown, rounded[0]
        return begins, tokens


def _byte_ids(vocabulary: Vocabulary) -> list[int]:
    """The token of each byte; empty if not every byte has one."""
    byte = TokenKind.BYTE
    rows = enumerate(zip(vocabulary.tokens, vocabulary.kinds, strict=True))
    places = {token: i for i, (token, kind) in rows if kind == byte}
    ids = [places.get(f"<0x{value:02X}>", -1) for value in range(256)]
    return [] if -1 in ids else ids
