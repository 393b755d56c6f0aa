"""SentencePiece's table that replaces characters (`precompiled_charsmap`), read as it is.

Format: the length in bytes (uint32, little-endian) of a double-array trie (Darts-clone), the trie
(uint32 units), and the replacements, each ended by a zero byte. At each position the longest key
is replaced; where no key begins, one character stays.
"""

from __future__ import annotations

import re
import struct
import sys
from array import array

from mlc_llm.errors import ModelFileError

NAME = "precompiled_charsmap"
_PLAIN = range(32, 127)


class CharacterTable:
    """Replaces characters in texts, as SentencePiece does it."""

    def __init__(self, data: bytes) -> None:
        """Raises ModelFileError if the data has another form."""
        size = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0
        if size == 0 or size % 4 or size >= len(data) - 4 or data[-1]:
            raise ModelFileError(f"{NAME}: {len(data)} bytes that are no table")
        self._units = array("I", data[4 : 4 + size])
        if sys.byteorder == "big":
            self._units.byteswap()
        self._texts = data[4 + size :]
        self._interesting = re.compile(r"[^ -~]" if self._keeps_plain() else r"[\s\S]")

    def replaced(self, text: str) -> str:
        """The text with every key replaced. Raises ModelFileError for a broken table."""
        pieces: list[str] = []
        position = 0
        while (found := self._interesting.search(text, position)) is not None:
            # A key may begin with a plain letter and go on with an accent.
            start = max(position, found.start() - 1)
            pieces.append(text[position:start])
            position = start
            while position <= found.start():
                value, length = self._longest(text, position)
                pieces.append(value)
                position += length
        pieces.append(text[position:])
        return "".join(pieces)

    def _longest(self, text: str, position: int) -> tuple[str, int]:
        """What stands for the longest key at a position, and how many characters it has; the
        character itself, if no key begins there."""
        found = (text[position], 1)
        node = _offset(self._unit(0))
        for end in range(position, len(text)):
            leaf = False
            for byte in text[end].encode("utf-8", "surrogatepass"):
                step = self._next(node, byte)
                if step is None:
                    return found
                node, leaf = step
            if leaf:
                found = (self._value(node), end + 1 - position)
        return found

    def _next(self, node: int, byte: int) -> tuple[int, bool] | None:
        """The node behind a byte, and whether a key ends there; None if there is no node."""
        unit = self._unit(node ^ byte)
        if unit & 0x800000FF != byte:
            return None
        return node ^ byte ^ _offset(unit), bool(unit & 0x100)

    def _value(self, node: int) -> str:
        """What stands for the key that ends at a node."""
        start = self._unit(node) & 0x7FFFFFFF
        end = self._texts.find(b"\0", start)
        if end < 0:
            raise ModelFileError(f"{NAME}: a replacement begins at byte {start}, outside")
        return self._texts[start:end].decode("utf-8", "replace")

    def _unit(self, place: int) -> int:
        try:
            return self._units[place]
        except IndexError:
            raise ModelFileError(f"{NAME}: unit {place} is outside the trie") from None

    def _keeps_plain(self) -> bool:
        """Whether no key has a plain character (ASCII, printable) alone or in second place."""
        root = _offset(self._unit(0))
        for first in _PLAIN:
            step = self._next(root, first)
            if step is None:
                continue
            node, leaf = step
            if leaf or any(self._next(node, second) is not None for second in _PLAIN):
                return False
        return True


def _offset(unit: int) -> int:
    """How far the nodes behind a unit are from it (they are joined by "exclusive or")."""
    return unit >> 10 << ((unit & 0x200) >> 6)
