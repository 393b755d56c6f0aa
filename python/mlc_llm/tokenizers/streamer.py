"""Makes the text of an answer while its tokens arrive."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol


class TokenTable(Protocol):
    """The part of a tokenizer that makes text from tokens."""

    @property
    def strips_leading_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class TextStreamer:
    """Takes token ids and gives text. All texts joined equal `tokenizer.decode(all ids)`.

    A character is held back until its last byte has come. Bytes that can no longer become a
    character turn into U+FFFD.
    """

    def __init__(self, tokenizer: TokenTable) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._drops_space = tokenizer.strips_leading_space
        self._finished = False

    def put(self, token_ids: Iterable[int]) -> str:
        """Add tokens. Returns the text that is complete now and was not returned before."""
        if self._finished:
            raise RuntimeError("TextStreamer.put was called after finish")
        return self._text(b"".join(map(self._token_bytes, token_ids)), final=False)

    def finish(self) -> str:
        """End the text. Returns what was held back; a second call returns "". `put` raises after
        it."""
        if self._finished:
            return ""
        self._finished = True
        return self._text(b"", final=True)

    def _text(self, data: bytes, *, final: bool) -> str:
        text = self._decoder.decode(data, final)
        if self._drops_space and text:
            self._drops_space = False
            return text.removeprefix(" ")
        return text
