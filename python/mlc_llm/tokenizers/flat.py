"""A byte-level vocabulary in one piece of memory, to be kept beside a model.

A text is found in it without reading all of them, so that an answer can begin before the merge
table is built, which takes longer than all else that opening a model takes.

Layout, little-endian: the length of the facts (uint32), the facts (JSON), and from the next
multiple of 4 on, for the tokens and then for the merges ("left right", in their order), the ends of
the texts (uint32), places by hash (uint32, 0: empty, else 1 + the text's number; the next place is
tried where another text has it), and the texts; last the kinds of the tokens (uint8).
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import Any
from zlib import crc32

from mlc_llm.tokenizers.vocabulary import Vocabulary

MAX_TRIES = 64
"""Places tried for one text. A vocabulary that needs more was made to be slow, and has no flat
form."""


class Texts(Sequence[str]):
    """A list of texts. Of several that are equal, the last is found."""

    def __init__(self, ends: memoryview, places: memoryview, text: memoryview) -> None:
        """`ends` and `places` are of type uint32; the number of places is a power of two."""
        self._ends, self._places, self._text = ends, places, text

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, at: Any) -> str:
        return bytes(self._bytes(at)).decode()

    def find(self, text: str) -> int | None:
        """The number of a text; None: it is not there."""
        key = text.encode()
        last = len(self._places) - 1
        place = crc32(key) & last
        while number := self._places[place]:
            if self._bytes(number - 1) == key:
                return number - 1
            place = (place + 1) & last
        return None

    def _bytes(self, at: int) -> memoryview:
        return self._text[self._ends[at - 1] if at else 0 : self._ends[at]]


class FlatVocabulary:
    """What `flattened` made, read in place; the fields that mean the same as in `Vocabulary`."""

    def __init__(self, data: memoryview) -> None:
        """Raises ValueError, KeyError, TypeError or struct.error where it is of another form."""
        (length,) = struct.unpack_from("<I", data)
        facts = json.loads(bytes(data[4 : 4 + length]))
        self.pre: str = facts["pre"]
        self.architecture: str = facts["architecture"]
        self.ids: dict[str, int] = facts["ids"]
        self.add_bos: bool = facts["add_bos"]
        self.control: dict[str, int] = facts["control"]
        self.user_defined: dict[str, int] = facts["user_defined"]
        self.end_ids = frozenset(facts["end_ids"])
        place, parts = _after(4 + length), []
        for size in facts["sizes"]:
            parts.append(data[place : place + size])
            place = _after(place + size)
        if place != _after(len(data)) or len(parts) != 7:
            raise ValueError("a flat vocabulary of another length")
        numbers = [part.cast("I") for part in (*parts[:2], *parts[3:5])]
        self.tokens = Texts(numbers[0], numbers[1], parts[2])
        self.merges = Texts(numbers[2], numbers[3], parts[5])
        self.kinds = parts[6]


def flattened(vocabulary: Vocabulary) -> bytes | None:
    """The flat form of a byte-level vocabulary; None for another one, and for odd ones."""
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
    """Ends, places and texts; None where a text would take too many tries."""
    keys = [text.encode() for text in texts]
    last = (1 << (2 * len(keys)).bit_length()) - 1
    places = array("I", bytes(4 * (last + 1)))
    for number, key in enumerate(keys):
        place, tries = crc32(key) & last, 0
        while places[place] and keys[places[place] - 1] != key:
            place, tries = (place + 1) & last, tries + 1
            if tries == MAX_TRIES:
                return None
        places[place] = number + 1
    ends = array("I", accumulate(map(len, keys)))
    return ends.tobytes(), places.tobytes(), b"".join(keys)


def _padded(part: bytes) -> bytes:
    return part + bytes(_after(len(part)) - len(part))


def _after(place: int) -> int:
    """The next multiple of 4."""
    return place + -place % 4
