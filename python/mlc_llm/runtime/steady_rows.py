"""The tables of a step that decodes the same sequences as the one before.

From one decoded token to the next hardly anything changes in them: each token is one place further,
and one row in sixteen needs a page. So they are changed where they lie, and nothing is done for a
row that stays on its page. Each row's page ids have room behind them. When a row outgrows it, all
get new room: kernels need the lists in the order of the rows (`library/signatures.py`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

Numbers: TypeAlias = "array[int]"
Rows: TypeAlias = Sequence[tuple[int, int]]
LEAST_ROOM = 4
"""Page ids that a row has room for at least."""


class Placement(NamedTuple):
    """Where a step's tokens go and what they see, as `library/signatures.py` says."""

    slots: Numbers
    places: Numbers
    """Of each token in its page list."""
    query_blocks: Numbers
    """Three a block."""
    page_ids: Numbers
    """Any id stands for a page that is not seen; whole splits of such may be left out."""


@dataclass
class SequencePages:
    """Pages of one sequence, all full but the last; `length` tokens are in them."""

    pages: Numbers = field(default_factory=lambda: array("i"))
    length: int = 0
    freed: range = range(0)
    """Places in `pages` that were given back; what stands there means nothing."""

    @property
    def owned(self) -> Numbers:
        return self.pages[: self.freed.start] + self.pages[self.freed.stop :]


class SteadyRows:
    """Sequences that get a token each, step after step. They must not change otherwise while this
    is used, and know their lengths only after `settle`."""

    def __init__(self, rows: Rows, sequences: Sequence[SequencePages], page_size: int) -> None:
        """The sequences hold this step's tokens already."""
        self.rows, self._sequences, self._page_size = rows, sequences, page_size
        self._steps = 0
        self._places = array("i", [one.length - 1 for one in sequences])
        pairs = list(zip(sequences, self._places, strict=True))
        slots = [one.pages[at // page_size] * page_size + at % page_size for one, at in pairs]
        self._slots = array("i", slots)
        self._full_at: list[list[int]] = [[] for _ in range(page_size)]
        """Rows that need a page after so many steps, which repeats with the size of a page."""
        for row, one in enumerate(sequences):
            self._full_at[-one.length % page_size].append(row)
        self.full = self._full_at[0]
        """Rows that need a page for the next step."""
        self._give_room()

    def advance(self, take: Callable[[], int]) -> None:
        """The next step. take: gives a free page; there are enough."""
        places, slots = self._places, self._slots
        self._steps += 1
        for row in range(len(places)):
            places[row] += 1
            slots[row] += 1
        for row in self.full:
            page = take()
            slots[row] = page * self._page_size
            self._append(row, page)
        self.full = self._full_at[self._steps % self._page_size]

    def settle(self) -> None:
        """The sequences know their lengths."""
        steps, self._steps = self._steps, 0
        if steps:
            for one in self._sequences:
                one.length += steps

    def _append(self, row: int, page: int) -> None:
        pages, placement = self._sequences[row].pages, self.placement
        pages.append(page)
        at = placement.query_blocks[3 * row + 2] + len(pages) - 1
        if at < self._ends[row]:
            placement.page_ids[at] = page
        else:
            self._give_room()

    def _give_room(self) -> None:
        """Lays out the page ids of all rows, each with room for the next power of two of them."""
        page_ids, query_blocks = array("i"), array("i")
        self._ends: list[int] = []
        """Of each row, where its room in the page ids ends."""
        for row, one in enumerate(self._sequences):
            query_blocks.extend((row, 1, len(page_ids)))
            page_ids.extend(one.pages)
            give_room(page_ids, len(one.pages))
            self._ends.append(len(page_ids))
        self.placement = Placement(self._slots, self._places, query_blocks, page_ids)
        """The same object as long as its numbers change where they lie."""


def give_room(page_ids: Numbers, count: int) -> None:
    """Room behind the `count` ids of a row, up to the next power of two of them: tables that keep
    their sizes keep their tensors too."""
    room = max(LEAST_ROOM, 1 << count.bit_length())
    page_ids.extend(array("i", bytes(4 * (room - count))))
