"""Who owns which KV page: the only place that knows.

Page tables are plain arrays handed to the compiled step as tensors. (TVM's own PagedKVCache was
measured against this: see docs/performance.md.) A page may belong to several sequences; it is
shared only while it is full, so that nobody ever writes to a shared page.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import RequestError
from mlc_llm.model_lib import KVInfo

Ints = npt.NDArray[np.int32]
Numbers: TypeAlias = "array[int]"
CopyPages = Callable[[list[int], list[int]], None]


@dataclass
class SequencePages:
    """Pages of one sequence, all full but the last; `length` tokens are in them."""

    pages: Numbers = field(default_factory=lambda: array("i"))
    length: int = 0


@dataclass(frozen=True)
class Placement:
    """Where a step's tokens go and what they see; shapes in `model_lib.py`."""

    slot: Ints
    position: Ints
    tiles: Ints
    page_ids: Ints
    longest: int
    """Length of the longest sequence, its new tokens included."""


class KVCache:
    """Page bookkeeping for one model. Not thread safe: one engine thread owns it."""

    def __init__(
        self, info: KVInfo, num_pages: int, max_num_sequence: int, copy_pages: CopyPages
    ) -> None:
        self._page_size, self._tile = info.page_size, info.query_tile
        self._num_pages, self._max_sequences = num_pages, max_num_sequence
        self._copy_pages = copy_pages
        self._references = [0] * num_pages
        self._free = list(range(num_pages - 1, -1, -1))
        self._sequences: dict[int, SequencePages] = {}

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def length(self, seq_id: int) -> int:
        """Tokens the sequence holds."""
        return self._sequences[seq_id].length

    def add(self, seq_id: int) -> None:
        """An empty sequence. Raises RequestError when `max_num_sequence` are there already."""
        assert seq_id not in self._sequences, f"sequence {seq_id} exists"
        if len(self._sequences) >= self._max_sequences:
            raise RequestError(f"all {self._max_sequences} sequences of the KV cache are in use")
        self._sequences[seq_id] = SequencePages()

    def fork(self, parent: int, child: int, length: int) -> None:
        """Full pages are shared; a page that is not full is copied. Raises RequestError."""
        source = self._sequences[parent]
        assert 0 < length <= source.length, "fork past the parent's end"
        full, rest = divmod(length, self._page_size)
        if rest and not self._free:
            raise RequestError("no free KV page to fork a sequence")
        self.add(child)
        pages = source.pages[:full]
        for page in pages:
            self._references[page] += 1
        if rest:
            pages.append(self._copied(source.pages[full]))
        self._sequences[child] = SequencePages(pages, length)

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """Drops the last tokens. A shared page that is full no more is copied."""
        sequence = self._sequences[seq_id]
        assert 0 <= num_tokens <= sequence.length, "rollback past the beginning"
        length = sequence.length - num_tokens
        kept = self._pages_for(length)
        cut = length % self._page_size and self._references[sequence.pages[kept - 1]] > 1
        freed = any(self._references[page] == 1 for page in sequence.pages[kept:])
        if cut and not self._free and not freed:
            raise RequestError("no free KV page to roll a sequence back")
        self._drop(sequence.pages[kept:])
        del sequence.pages[kept:]
        sequence.length = length
        if cut:
            shared = sequence.pages[-1]
            sequence.pages[-1] = self._copied(shared)
            self._drop([shared])

    def remove(self, seq_id: int) -> None:
        """Gives the sequence's pages back."""
        self._drop(self._sequences.pop(seq_id).pages)

    def reset(self) -> None:
        """Drops every sequence."""
        for seq_id in list(self._sequences):
            self.remove(seq_id)

    def place(self, rows: Sequence[tuple[int, int]]) -> Placement:
        """Takes pages for `n` new tokens of each (seq_id, n).

        Raises RequestError before any change if there are too few.
        """
        self._reserve(rows)
        slot, position, tiles, page_ids = (array("i") for _ in range(4))
        size = self._page_size
        for seq_id, n in rows:  # mostly one token each: there, plain numbers beat NumPy
            sequence = self._sequences[seq_id]
            first_row, pages = len(position), sequence.pages
            new = range(sequence.length, sequence.length + n)
            slot.extend([pages[at // size] * size + at % size for at in new])
            position.extend(new)
            for start in range(0, n, self._tile):
                tiles.extend((first_row + start, min(self._tile, n - start), len(page_ids)))
            page_ids.extend(pages)
            sequence.length += n
        slots, positions, spans, ids = map(_numpy, (slot, position, tiles, page_ids))
        return Placement(slots, positions, spans.reshape(-1, 3), ids, max(position) + 1)

    def check_integrity(self) -> None:
        """AssertionError unless every page is owned as often as its count says, or free once."""
        counts = [0] * self._num_pages
        for sequence in self._sequences.values():
            assert len(sequence.pages) == self._pages_for(sequence.length), "pages and length"
            for page in sequence.pages:
                counts[page] += 1
        assert counts == self._references, "reference counts"
        assert sorted(self._free) == [p for p, count in enumerate(counts) if count == 0], (
            "free list"
        )

    def _reserve(self, rows: Sequence[tuple[int, int]]) -> None:
        wanted = [
            self._pages_for(self._sequences[s].length + n) - len(self._sequences[s].pages)
            for s, n in rows
        ]
        if sum(wanted) > len(self._free):
            raise RequestError(f"{sum(wanted)} KV pages needed, {len(self._free)} are free")
        for (seq_id, _), count in zip(rows, wanted, strict=True):
            self._sequences[seq_id].pages.extend(self._take() for _ in range(count))

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _take(self) -> int:
        page = self._free.pop()
        self._references[page] = 1
        return page

    def _copied(self, page: int) -> int:
        copy = self._take()
        self._copy_pages([page], [copy])
        return copy

    def _drop(self, pages: Sequence[int]) -> None:
        for page in pages:
            self._references[page] -= 1
            if self._references[page] == 0:
                self._free.append(page)


def _numpy(numbers: Numbers) -> Ints:
    """A view, not a copy."""
    return np.frombuffer(numbers, np.int32)
