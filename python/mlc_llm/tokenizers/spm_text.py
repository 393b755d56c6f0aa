"""How SentencePiece prepares a text: it replaces characters, cares for spaces, and marks them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlc_llm.tokenizers.characters import CharacterTable
from mlc_llm.tokenizers.control import ControlFinder
from mlc_llm.tokenizers.sentencepiece import SPACE

_RUNS = re.compile(" +")


class TextPreparer:
    """Does what `normalizer.cc` of SentencePiece does."""

    def __init__(
        self,
        characters: CharacterTable | None,
        user_defined: Mapping[str, int],
        *,
        adds_space: bool,
        merges_spaces: bool,
    ) -> None:
        """user_defined: tokens in which no character is replaced."""
        self._characters = characters
        self._whole = ControlFinder(user_defined)
        self._adds_space = adds_space
        self._merges_spaces = merges_spaces

    def prepared(self, text: str, *, continued: bool = False) -> str:
        """The text that the model sees. continued: for text after other text, which gets no space
        in front."""
        empty = not text
        if self._characters is not None:
            text = self._replaced(text, self._characters)
        if self._merges_spaces:
            text = _RUNS.sub(" ", text).rstrip(f" {SPACE}")
            text = text if continued else text.lstrip(" ")
            empty = not text
        if self._adds_space and not continued and not empty:
            text = f" {text}"
        return text.replace(" ", SPACE)

    def _replaced(self, text: str, characters: CharacterTable) -> str:
        pieces: list[str] = []
        position = 0
        for start, end, _ in self._whole.find(text):
            pieces += characters.replaced(text[position:start]), text[start:end]
            position = end
        pieces.append(characters.replaced(text[position:]))
        return "".join(pieces)
