"""Byte-level BPE of short texts: looks up only the merges they need, in a flat vocabulary."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise

from mlc_llm.tokenizers.flat import FlatVocabulary
from mlc_llm.tokenizers.word_rules import WordRule, word_rule

MOST_CHARACTERS = 4096
"""In the texts of one call. For more, building the merge table is faster."""
MOST_IN_ALL = 1 << 16
"""Characters of all calls together. After that, building the merge table is faster."""
LONGEST_WORD = 64
"""Characters."""


class Words:
    """Encodes texts word by word, with the same ids as the library with the whole merge table."""

    def __init__(self, vocabulary: FlatVocabulary) -> None:
        self._vocabulary = vocabulary
        self._known: dict[str, list[int] | None] = {}
        self._ranks: dict[tuple[str, str], int | None] = {}
        self._left = MOST_IN_ALL

    def encode(self, texts: Sequence[str]) -> list[list[int]] | None:
        """Ids of texts that `can_cut` is true of; names of control tokens in them are ordinary
        text. None if the whole merge table is needed or would be faster."""
        count = sum(map(len, texts))
        self._left -= count
        if count > MOST_CHARACTERS or self._left < 0:
            return None
        try:
            coded = [self._encode(text) for text in texts]
        except (UnicodeEncodeError, TypeError):  # a lone surrogate: the library reports it
            return None
        return [ids for ids in coded if ids is not None] if None not in coded else None

    @cached_property
    def _rule(self) -> WordRule:
        return word_rule(self._vocabulary.pre, self._vocabulary.architecture)

    @cached_property
    def _control_ids(self) -> frozenset[int]:
        return frozenset(self._vocabulary.control.values())

    def can_cut(self, text: str) -> bool:
        """Whether only names of control tokens are cut out of a text before its words are."""
        return not any(name in text for name in self._vocabulary.user_defined)

    def _encode(self, text: str) -> list[int] | None:
        text.encode()
        ids: list[int] = []
        for word in self._rule.words(text):
            if word not in self._known:
                self._known[word] = self._ids(word)
            found = self._known[word]
            if found is None:
                return None
            ids += found
        return ids

    def _ids(self, word: str) -> list[int] | None:
        """Ids of one word. In each turn, the pair whose merge is first in the list is merged."""
        parts = list(word)
        if len(parts) > LONGEST_WORD:
            return None
        if self._rule.takes_whole_words:
            whole = self._vocabulary.tokens.find(word)
            if whole is not None and whole not in self._control_ids:
                return [whole]
        while True:
            ranks = [self._rank(pair) for pair in pairwise(parts)]
            ranked = [(rank, at) for at, rank in enumerate(ranks) if rank is not None]
            if not ranked:
                break
            at = min(ranked)[1]
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        ids = [self._vocabulary.tokens.find(part) for part in parts]
        return [one for one in ids if one is not None] if None not in ids else None

    def _rank(self, pair: tuple[str, str]) -> int | None:
        if pair not in self._ranks:
            self._ranks[pair] = self._vocabulary.merges.find(" ".join(pair))
        return self._ranks[pair]
