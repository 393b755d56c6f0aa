"""A byte-level vocabulary in one piece of memory, which the cache keeps for a model.

A text can be looked up in it without reading all texts. So an answer can begin before the merge
table is built, which takes longer than the rest of opening a model.

Layout, little-endian, each part at a multiple of 4 bytes:

* the length of the facts (uint32) and the facts (JSON)
* for the tokens, then for the merges ("left right", in order): the end of each text in bytes
  (uint32); a hash table of slots (uint32; 0: empty, else 1 + the text's index; if a slot is taken,
  the next one is tried); the texts
* the kinds of the tokens (uint8)
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from zlib import crc32

from mlc_llm.tokenizers.vocabulary import Vocabulary

MAX_TRIES = 64
"""Slots tried for one text. If a vocabulary needs more, somebody made it to be slow; it gets no
flat form."""


class Texts:
    """A list of texts. `find` finds the last of equal texts."""

    def __init__(self, ends: memoryview, slots: memoryview, text: memoryview) -> None:
        """`ends` and `slots` are uint32; the number of slots is a power of two."""
        self._ends, self._slots, self._text = ends, slots, text

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, index: int) -> str:
        return bytes(self._bytes(index)).decode()

    def find(self, text: str) -> int | None:
        """The index of a text; None if it is not in the list."""
        key = text.encode()
        last = len(self._slots) - 1
        slot = crc32(key) & last
        while entry := self._slots[slot]:
            if self._bytes(entry - 1) == key:
                return entry - 1
            slot = (slot + 1) & last
        return None

    def _bytes(self, index: int) -> memoryview:
        return self._text[self._ends[index - 1] if index else 0 : self._ends[index]]


class FlatVocabulary:
    """Reads what `flattened` made, without copying. Its fields mean the same as in `Vocabulary`."""

    def __init__(self, data: memoryview) -> None:
        """Raises ValueError, KeyError, TypeError or struct.error if the data has another form."""
        (length,) = struct.unpack_from("<I", data)
        facts = json.loads(bytes(data[4 : 4 + length]))
        self.pre: str = facts["pre"]
        self.architecture: str = facts["architecture"]
        self.ids: dict[str, int] = facts["ids"]
        self.add_bos: bool = facts["add_bos"]
        self.control: dict[str, int] = facts["control"]
        self.user_defined: dict[str, int] = facts["user_defined"]
        self.end_ids = frozenset(facts["end_ids"])
        offset, parts = _aligned(4 + length), []
        for size in facts["sizes"]:
            parts.append(data[offset : offset + size])
            offset = _aligned(offset + size)
        if offset != _aligned(len(data)) or len(parts) != 7:
            raise ValueError("the flat vocabulary has another length")
        numbers = [part.cast("I") for part in (*parts[:2], *parts[3:5])]
        self.tokens = Texts(numbers[0], numbers[1], parts[2])
        self.merges = Texts(numbers[2], numbers[3], parts[5])
        self.kinds = parts[6]


def flattened(vocabulary: Vocabulary) -> bytes | None:
    """The flat form of a byte-level vocabulary; None for another kind of vocabulary, for kinds of
    tokens above 255, and if a text needs too many slots."""
    if vocabulary.model != "gpt2" or not {*vocabulary.kinds} <= {*range(256)}:
        return None
    merges = [f"{left} {right}" for left, right in vocabulary.usable_merges]
    lists = [_list(vocabulary.tokens), _list(merges)]
    if None in lists:
        return None
    parts = [part for one in lists if one is not None for part in one]
    parts.append(bytes(vocabulary.kinds))
    facts = {
        "pre": vocabulary.pre,
        "architecture": vocabulary.architecture,
        "ids": vocabulary.ids,
        "add_bos": vocabulary.add_bos,
        "control": vocabulary.control,
        "user_defined": vocabulary.user_defined,
        "end_ids": sorted(vocabulary.end_ids),
        "sizes": [len(part) for part in parts],
    }
    head = json.dumps(facts).encode()
    return b"".join(_padded(part) for part in (struct.pack("<I", len(head)) + head, *parts))


def _list(texts: Sequence[str]) -> tuple[bytes, bytes, bytes] | None:
    """Ends, slots and texts; None if a text needs more than MAX_TRIES slots."""
    keys = [text.encode() for text in texts]
    last = (1 << (2 * len(keys)).bit_length()) - 1
    slots = array("I", bytes(4 * (last + 1)))
    for index, key in enumerate(keys):
        slot, tries = crc32(key) & last, 0
        while slots[slot] and keys[slots[slot] - 1] != key:
            slot, tries = (slot + 1) & last, tries + 1
            if tries == MAX_TRIES:
                return None
        slots[slot] = index + 1
    ends = array("I", accumulate(map(len, keys)))
    return ends.tobytes(), slots.tobytes(), b"".join(keys)


def _padded(part: bytes) -> bytes:
    return part + bytes(_aligned(len(part)) - len(part))


def _aligned(offset: int) -> int:
    """The next multiple of 4."""
    return offset + -offset % 4
