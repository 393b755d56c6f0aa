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
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = "array[int]"
Rows: TypeAlias = Sequence[tuple[int, int]]
Ints: TypeAlias = "npt.NDArray[np.int32]"
LEAST_ROWS = 8
"""With fewer, plain numbers are as fast."""
LEAST_ROOM = 4


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
        self.places = array("i", [one.length - 1 for one in sequences])
        pairs = list(zip(sequences, self.places, strict=True))
        slots = [one.pages[at // page_size] * page_size + at % page_size for one, at in pairs]
        self.slots = array("i", slots)
        self.page_ids, self.query_blocks = array("i"), array("i")
        self._ends: list[int] = []
        """Of each row, where its room in `page_ids` ends."""
        self._give_room()
        self._places, self._slots = _view(self.places), _view(self.slots)

    def free_pages_needed(self) -> int:
        """By the next step."""
        return int(np.count_nonzero((self._places + 1) % self._page_size == 0))

    def advance(self, take: Callable[[], int]) -> None:
        """The next step. take: gives a free page; there are enough."""
        self._places += 1
        self._slots += 1
        self._steps += 1
        for row in np.flatnonzero(self._places % self._page_size == 0).tolist():
            page = take()
            self.slots[row] = page * self._page_size
            self._append(row, page)

    def settle(self) -> None:
        """The sequences know their lengths."""
        steps, self._steps = self._steps, 0
        if steps:
            for one in self._sequences:
                one.length += steps

    def _append(self, row: int, page: int) -> None:
        pages = self._sequences[row].pages
        pages.append(page)
        at = self.query_blocks[3 * row + 2] + len(pages) - 1
        if at < self._ends[row]:
            self.page_ids[at] = page
        else:
            self._give_room()

    def _give_room(self) -> None:
        """Lays out the page ids of all rows, with as much room behind them."""
        self.page_ids, self.query_blocks, self._ends = array("i"), array("i"), []
        for row, one in enumerate(self._sequences):
            self.query_blocks.extend((row, 1, len(self.page_ids)))
            self.page_ids.extend(one.pages)
            self.page_ids.extend(_zeros(max(LEAST_ROOM, len(one.pages))))
            self._ends.append(len(self.page_ids))


def _zeros(count: int) -> Numbers:
    return array("i", bytes(4 * count))


def _view(numbers: Numbers) -> Ints:
    return np.frombuffer(numbers, np.int32)
