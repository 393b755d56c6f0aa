"""The KV pages of a model: one page table for each group of layers, kept in step.

Layers that see everything keep a page for every token; layers with a sliding window give back what
nothing sees any more, so their pages are few. The *main* group is the one that needs most pages for
a long sequence. Only it is what a scheduler counts: the others get so many pages that they never
lack one (`group_pages`). Recurrent layers keep a state for each sequence (`state_table.py`).

What can be done with a sequence depends on what its layers keep:

==================  =================  ==========================  ==========================
kept                fork               rollback                    prefix of another sequence
==================  =================  ==========================  ==========================
pages of all        at any token       by any number of tokens     any
pages of a window   while the window   while the window            all of it, or nothing
                    has all its pages  has all its pages
a state             at its end, or     its last step, or to where  all of it, or up to where
                    where it is kept   it is kept                  it is kept
==================  =================  ==========================  ==========================

A model with several kinds is bound by each (`RunnerLimits.only_whole`, `has_states`).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from operator import is_
from typing import NamedTuple

from mlc_llm.library.metadata import KVInfo
from mlc_llm.runtime.limits import RunnerLimits, Window
from mlc_llm.runtime.page_table import Numbers, PageTable
from mlc_llm.runtime.state_table import NO_DRAFTS, NOTHING, StatePlace, StateTable
from mlc_llm.runtime.steady_rows import Placement

CopyGroupPages = Callable[[int, list[int], list[int]], None]
"""(group, source pages, target pages)"""


class Placements(NamedTuple):
    """Where a step's tokens go in each group, and what they see."""

    position: Numbers
    """Of each token in its sequence."""
    groups: Sequence[Placement]
    state_rows: Numbers | None
    """None: no layer is recurrent."""
    previous: Numbers | None = None
    """Slot of the token before each token, -1 for none, in the group of a draft head; None: the
    model has no such head."""


def group_windows(info: KVInfo, window: Window | None) -> tuple[Window | None, ...]:
    """What a token sees in each group: the model's own window, else the engine's."""
    own = (group.window for group in info.groups)
    return tuple(window if size is None else Window(size) for size in own)


def main_group(windows: Sequence[Window | None]) -> int:
    """The group of which a long sequence needs most pages."""
    sizes = [float("inf") if one is None else one.size for one in windows]
    return sizes.index(max(sizes))


def narrower_windows(windows: Sequence[Window | None]) -> tuple[Window, ...]:
    """Those of all groups but the main one, each once."""
    main = windows[main_group(windows)]
    return tuple(dict.fromkeys(one for one in windows if one is not None and one != main))


def group_pages(windows: Sequence[Window | None], limits: RunnerLimits) -> tuple[int, ...]:
    """Pages for each group; the main one has `limits.num_pages`."""
    main, found = main_group(windows), []
    for g, window in enumerate(windows):
        if g == main or window is None:
            found.append(limits.num_pages)
            continue
        pool = window.pool_pages(limits.page_size, limits.max_num_sequence, limits.max_batch_tokens)
        found.append(min(limits.num_pages, pool))
    return tuple(found)


class Contents(NamedTuple):
    """Where a sequence lies: what a copy of it has to have."""

    pages: Sequence[Numbers]
    """Of each group."""
    freed: Sequence[range]
    """Places of pages that each group gave back."""
    state: StatePlace | None
    """None: no layer is recurrent."""


class KVCache:
    """Not thread safe: one engine thread owns it."""

    def __init__(
        self,
        info: KVInfo,
        pages: Sequence[int],
        max_num_sequence: int,
        copy_pages: CopyGroupPages,
        windows: Sequence[Window | None],
        *,
        states: StateTable | None = None,
        follows: int | None = None,
    ) -> None:
        """pages, windows: of each group. follows: the group of a draft head."""
        self._states = states
        self._tables = [
            PageTable(
                group, info.page_size, pages[g], max_num_sequence,
                copy_pages=_copier(copy_pages, g), window=windows[g],
            )
            for g, group in enumerate(info.groups)
        ]  # fmt: skip
        self._follows = follows
        # The main table comes first: it alone can lack pages, and then nothing has changed.
        self._main = self._tables[main_group(windows)]
        self._others = [table for table in self._tables if table is not self._main]
        self._windowed = [table for table in self._tables if not table.keeps_all]
        self.keeps_all = not self._windowed
        """Nothing is ever trimmed."""
        self._placed: Placements | None = None
        """Of the last step."""

    @property
    def free_pages(self) -> int:
        return self._main.free_pages

    def length(self, seq_id: int) -> int:
        """Tokens the sequence holds."""
        return self._main.length(seq_id)

    def add(self, seq_id: int) -> None:
        """An empty sequence. Raises RequestError when `max_num_sequence` are there already."""
        self._main.add(seq_id)
        for table in self._others:
            table.add(seq_id)
        if self._states is not None:
            self._states.add(seq_id)

    def fork(self, parent: int, child: int, length: int) -> None:
        """Full pages are shared; a page that is not full is copied. Raises RequestError."""
        self._main.fork(parent, child, length)
        for table in self._others:
            table.fork(parent, child, length)
        if self._states is not None:
            self._states.fork(parent, child, length)

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """Drops the last tokens. A shared page that is full no more is copied. Raises before any
        change."""
        if len(self._kept) > 1:
            for table in self._tables:
                table.check_rollback(seq_id, num_tokens)
        if self._states is not None:
            self._states.rollback(seq_id, num_tokens)
        self._main.rollback(seq_id, num_tokens)
        for table in self._others:
            table.rollback(seq_id, num_tokens)

    def contents(self, seq_id: int) -> Contents:
        """Where the sequence lies."""
        found = [table.contents(seq_id) for table in self._tables]
        state = None if self._states is None else self._states.where(seq_id)
        return Contents([pages for pages, _ in found], [freed for _, freed in found], state)

    def restore(self, seq_id: int, length: int, freed: Sequence[range]) -> Contents:
        """Room for a sequence whose pages and state come from elsewhere; freed: as in its
        `contents`. Raises RequestError before any change."""
        pages = {self._main: self._main.restore(seq_id, length, freed[self._index(self._main)])}
        for table in self._others:
            pages[table] = table.restore(seq_id, length, freed[self._index(table)])
        state = None if self._states is None else self._states.restore(seq_id, length)
        return Contents([pages[table] for table in self._tables], freed, state)

    def _index(self, table: PageTable) -> int:
        return self._tables.index(table)

    def kept_states(self, seq_id: int) -> Sequence[int]:
        """Numbers of tokens behind which an earlier state of the sequence is kept."""
        return () if self._states is None else self._states.kept(seq_id)

    def trim(self, seq_id: int, undone: int = 0) -> None:
        """Gives back what is not seen any more, even if the last `undone` tokens are dropped."""
        for table in self._windowed:
            table.trim(seq_id, undone)

    def remove(self, seq_id: int) -> None:
        """Gives back the sequence's pages and its state."""
        for table in self._kept:
            table.remove(seq_id)

    def reset(self) -> None:
        """Drops every sequence."""
        for table in self._kept:
            table.reset()

    def place(
        self,
        rows: Sequence[tuple[int, int]],
        fast: int = 0,
        keep: Mapping[int, Sequence[int]] = NOTHING,
        drafted: Mapping[int, int] = NO_DRAFTS,
        *,
        drafts: bool = False,
    ) -> Placements:
        """See `PageTable.place`, and `StateTable.place` for `keep` and `drafted`. Raises
        RequestError before any change if pages lack. The same object as before: its numbers have
        changed where they lie."""
        position = self._positions(rows) if self._main in self._windowed else None
        lasts = None if self._follows is None else self._last_slots(rows)
        groups = self._place_pages(rows, fast, drafts=drafts)
        last = self._placed
        if last is not None and self._states is None and all(map(is_, groups, last.groups)):
            if lasts is not None and last.previous is not None:
                last.previous[:] = lasts
            return last
        state_rows = None if self._states is None else self._states.place(rows, keep, drafted)
        previous = None
        if self._follows is not None and lasts is not None:
            previous = _previous(rows, lasts, groups[self._follows])
        position = groups[self._index(self._main)].places if position is None else position
        self._placed = Placements(position, groups, state_rows, previous)
        return self._placed

    def _place_pages(
        self, rows: Sequence[tuple[int, int]], fast: int, *, drafts: bool
    ) -> Sequence[Placement]:
        """Of each group."""
        first = self._main.place(rows, fast, drafts=drafts)
        if not self._others:
            return [first]
        return [
            first if table is self._main else table.place(rows, fast, drafts=drafts)
            for table in self._tables
        ]

    @property
    def _kept(self) -> Sequence[PageTable | StateTable]:
        return self._tables if self._states is None else [*self._tables, self._states]

    def _last_slots(self, rows: Sequence[tuple[int, int]]) -> Numbers:
        """Of each row the slot of the last token before it."""
        assert self._follows is not None
        table = self._tables[self._follows]
        assert table.keeps_all, "a head sees all tokens"
        return table.last_slots(rows)

    def _positions(self, rows: Sequence[tuple[int, int]]) -> Numbers:
        position, ends = array("i"), dict[int, int]()
        for seq_id, n in rows:  # a sequence may come again
            start = ends.get(seq_id, self._main.length(seq_id))
            ends[seq_id] = start + n
            position.extend(range(start, start + n))
        return position

    def check_integrity(self) -> None:
        """AssertionError unless all tables are sound and hold the same sequences."""
        for table in self._kept:
            table.check_integrity()
            assert table.lengths() == self._main.lengths(), "groups out of step"


def _previous(rows: Sequence[tuple[int, int]], lasts: Sequence[int], placed: Placement) -> Numbers:
    """Slots of the tokens before each token. lasts: before the first row of each sequence."""
    found, ends, at = array("i"), dict[int, int](), 0
    for (seq_id, n), last in zip(rows, lasts, strict=True):
        found.append(ends.get(seq_id, last))  # a sequence may come again
        found.extend(placed.slots[at : at + n - 1])
        at += n
        ends[seq_id] = placed.slots[at - 1]
    return found


def _copier(copy: CopyGroupPages, group: int) -> Callable[[list[int], list[int]], None]:
    return lambda source, target: copy(group, source, target)
