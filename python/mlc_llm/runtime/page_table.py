"""Who owns which KV page of a group of layers: the only place that knows.

Page tables are plain arrays handed to the compiled step as tensors. (TVM's own PagedKVCache was
measured against this: see docs/performance/parts.md.) A page may belong to several sequences; it is
shared only while it is full, so that nobody ever writes to a shared page. With a sliding window a
sequence gives back the pages that it cannot see any more.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import TypeAlias

from mlc_llm.errors import RequestError
from mlc_llm.library.metadata import KVGroupInfo
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.steady_rows import Placement, SequencePages, SteadyRows, give_room

Numbers: TypeAlias = "array[int]"
CopyPages = Callable[[list[int], list[int]], None]
FEW = 16
"""Tokens of a step that verifies the draft of one sequence, at most. Such steps and plain ones take
turns, and their tables keep their sizes."""


class PageTable:
    """Page bookkeeping for one group of layers. Not thread safe: one engine thread owns it."""

    def __init__(
        self,
        info: KVGroupInfo,
        page_size: int,
        num_pages: int,
        max_num_sequence: int,
        *,
        copy_pages: CopyPages,
        window: Window | None = None,
    ) -> None:
        self._page_size, self._split = page_size, info.kv_split
        self._block, self._fast_block = info.query_block, info.fast_query_block
        self._apart = info.apart
        self._num_pages, self._max_sequences = num_pages, max_num_sequence
        self._copy_pages, self._window = copy_pages, window
        self.reset()

    @property
    def keeps_all(self) -> bool:
        """No page is given back before its sequence ends: the place of a token is its position."""
        return self._window is None

    @property
    def free_pages(self) -> int:
        return len(self._free)

    def length(self, seq_id: int) -> int:
        """Tokens the sequence holds."""
        self._settle()
        return self._sequences[seq_id].length

    def last_slots(self, rows: Sequence[tuple[int, int]]) -> Numbers:
        """Of the last token that the sequence of each (seq_id, n) holds; -1 if it holds none."""
        steady = self._steady
        if steady is not None and steady.rows == rows:
            return steady.placement.slots[:]
        self._settle()
        return array("i", [self._last_slot(seq_id) for seq_id, _ in rows])

    def _last_slot(self, seq_id: int) -> int:
        sequence, size = self._sequences[seq_id], self._page_size
        last = sequence.length - 1
        return sequence.pages[last // size] * size + last % size if last >= 0 else -1

    def lengths(self) -> dict[int, int]:
        """Tokens of every sequence."""
        self._settle()
        return {seq_id: one.length for seq_id, one in self._sequences.items()}

    def add(self, seq_id: int) -> None:
        """An empty sequence. Raises RequestError when `max_num_sequence` are there already."""
        assert seq_id not in self._sequences, f"sequence {seq_id} exists"
        if len(self._sequences) >= self._max_sequences:
            raise RequestError(f"all {self._max_sequences} sequences of the KV cache are in use")
        self._sequences[seq_id] = SequencePages()

    def fork(self, parent: int, child: int, length: int) -> None:
        """Full pages are shared; a page that is not full is copied. Raises RequestError."""
        self._settle()
        source = self._sequences[parent]
        assert 0 < length <= source.length, "fork past the parent's end"
        self._check_seen(source, length)
        full, rest = divmod(length, self._page_size)
        if rest and not self._free:
            raise RequestError("no free KV page to fork a sequence")
        self.add(child)
        forked = SequencePages(source.pages[:full], length, source.freed)
        for page in forked.owned:
            self._references[page] += 1
        if rest:
            forked.pages.append(self._copied(source.pages[full]))
        self._sequences[child] = forked

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """Drops the last tokens. A shared page that is full no more is copied."""
        length, cut = self.check_rollback(seq_id, num_tokens)
        sequence, kept = self._sequences[seq_id], self._pages_for(length)
        self._drop(sequence.pages[kept:])
        del sequence.pages[kept:]
        sequence.length = length
        if cut:
            shared = sequence.pages[-1]
            sequence.pages[-1] = self._copied(shared)
            self._drop([shared])

    def check_rollback(self, seq_id: int, num_tokens: int) -> tuple[int, bool]:
        """AssertionError or RequestError if `rollback` is impossible. Else the length that is left,
        and whether a shared page is cut."""
        self._settle()
        sequence = self._sequences[seq_id]
        assert 0 <= num_tokens <= sequence.length, "rollback past the beginning"
        length = sequence.length - num_tokens
        self._check_seen(sequence, length)
        kept = self._pages_for(length)
        is_partial = length % self._page_size > 0
        cut = is_partial and self._references[sequence.pages[kept - 1]] > 1
        freed = any(self._references[page] == 1 for page in sequence.pages[kept:])
        if cut and not self._free and not freed:
            raise RequestError("no free KV page to roll a sequence back")
        return length, cut

    def contents(self, seq_id: int) -> tuple[Numbers, range]:
        """The pages that the sequence has, and the places of those that it gave back."""
        self._settle()
        sequence = self._sequences[seq_id]
        return sequence.owned, sequence.freed

    def restore(self, seq_id: int, length: int, freed: range) -> Numbers:
        """A sequence whose pages come from elsewhere: `contents` of the other one. Returns its
        pages, which mean nothing yet. Raises RequestError before any change."""
        count = self._pages_for(length)
        if count - len(freed) > len(self._free):
            raise RequestError(f"{count - len(freed)} KV pages needed, {len(self._free)} are free")
        self.add(seq_id)
        pages = array("i", [0 if place in freed else self._take() for place in range(count)])
        self._sequences[seq_id] = restored = SequencePages(pages, length, freed)
        return restored.owned

    def trim(self, seq_id: int, undone: int = 0) -> None:
        """Gives back the pages that neither the last token nor a later one sees, even if the last
        `undone` tokens are rolled back. A sequence that has ended meanwhile has given all back."""
        sequence = self._sequences.get(seq_id)
        if self._window is None or sequence is None:
            return
        unseen = self._window.unseen(sequence.length - 1 - undone, self._page_size)
        fresh = slice(max(sequence.freed.stop, unseen.start), unseen.stop)
        if fresh.start < fresh.stop:
            self._drop(sequence.pages[fresh])
            sequence.freed = range(unseen.start, unseen.stop)
            sequence.pages[fresh] = array("i", bytes(4 * (fresh.stop - fresh.start)))

    def remove(self, seq_id: int) -> None:
        """Gives the sequence's pages back."""
        self._settle()
        self._drop(self._sequences.pop(seq_id).owned)

    def reset(self) -> None:
        """Drops every sequence. Works whatever state an interrupted call has left."""
        self._references = [0] * self._num_pages
        self._free = list(range(self._num_pages - 1, -1, -1))
        self._sequences: dict[int, SequencePages] = {}
        self._rows: Sequence[tuple[int, int]] = ()
        """Of the last step."""
        self._steady: SteadyRows | None = None

    def place(
        self, rows: Sequence[tuple[int, int]], fast: int = 0, *, drafts: bool = False
    ) -> Placement:
        """Takes pages for `n` new tokens of each (seq_id, n); a sequence may come again.

        fast: how many tokens, of the first rows, are the step's `fast_tokens`. drafts: they will be
        rolled back. The same object as before: the rows are the same, and its numbers have changed
        where they lie.

        Raises RequestError before any change if there are too few.
        """
        steady = self._steady
        if steady is not None and steady.rows == rows:
            if steady.full:
                self._check_free(len(steady.full))
            steady.advance(self._take)
            return steady.placement
        self._settle()
        self._reserve(rows)
        if not drafts and self._is_steady(rows):
            return self._begin_steady(rows)
        self._rows = rows
        placed = slots, places, blocks, page_ids = _empty_placement()
        size, apart_from = self._page_size, 0 if self._fast_block == self._block else fast
        for seq_id, n in rows:  # mostly one token each: there, plain numbers beat NumPy
            sequence = self._sequences[seq_id]
            pages, new = sequence.pages, range(sequence.length, sequence.length + n)
            sequence.length += n
            is_apart = n <= self._apart and len(places) >= apart_from
            if (n == 1 or is_apart) and not sequence.freed:
                self._place_apart(pages, new, placed)
                continue
            block = self._fast_block if len(places) < fast else self._block
            for start in range(0, n, block):
                blocks.extend((len(places) + start, min(block, n - start), len(page_ids)))
            slots.extend([pages[at // size] * size + at % size for at in new])
            if sequence.freed:
                cut = self._cut(sequence)
                page_ids.extend(pages[: cut.start])
                pages = pages[cut.stop :]
                new = range(new.start - len(cut) * size, new.stop - len(cut) * size)
            places.extend(new)
            page_ids.extend(pages)
        if len(rows) == 1 and len(places) <= FEW and self._window is None:
            give_room(page_ids, len(page_ids))  # as much as steady rows have
        return placed

    def _place_apart(self, pages: Numbers, new: range, placed: Placement) -> None:
        """Each of the new tokens gets a query block and a list of pages of its own."""
        slots, places, blocks, page_ids = placed
        size = self._page_size
        for at in new:
            blocks.extend((len(places), 1, len(page_ids)))
            slots.append(pages[at // size] * size + at % size)
            places.append(at)
            page_ids.extend(pages)

    def _is_steady(self, rows: Sequence[tuple[int, int]]) -> bool:
        """The rows are those of the step before, a token each, and see all that they have."""
        return (
            self._window is None
            and rows == self._rows
            and all(n == 1 for _, n in rows)
            and len(dict(rows)) == len(rows)
        )

    def _begin_steady(self, rows: Sequence[tuple[int, int]]) -> Placement:
        sequences = [self._sequences[seq_id] for seq_id, _ in rows]
        for one in sequences:
            one.length += 1
        self._steady = SteadyRows(rows, sequences, self._page_size)
        return self._steady.placement

    def _settle(self) -> None:
        """Before anything but the same rows: the sequences know their lengths."""
        if self._steady is not None:
            self._steady.settle()
            self._steady = None

    def check_integrity(self) -> None:
        """AssertionError unless every page is owned as often as its count says, or free once."""
        self._settle()
        counts = [0] * self._num_pages
        for sequence in self._sequences.values():
            assert len(sequence.pages) == self._pages_for(sequence.length), "pages and length"
            for page in sequence.owned:
                counts[page] += 1
        assert counts == self._references, "reference counts"
        assert sorted(self._free) == [p for p, count in enumerate(counts) if count == 0], (
            "free list"
        )

    def _cut(self, sequence: SequencePages) -> range:
        """Whole splits among the pages that are freed: no token that is still to come sees them, so
        a step costs what the window does, however long the sequence."""
        freed, split = sequence.freed, self._split
        start = -(-freed.start // split) * split
        return range(start, max(start, freed.stop // split * split))

    def _check_seen(self, sequence: SequencePages, length: int) -> None:
        """AssertionError if the token behind the first `length` would see a page that is freed."""
        if sequence.freed:
            assert self._window is not None
            unseen = self._window.unseen(length, self._page_size)
            assert sequence.freed.stop <= unseen.stop, "pages are gone that would be seen"

    def _reserve(self, rows: Sequence[tuple[int, int]]) -> None:
        totals = dict(rows)
        if len(totals) < len(rows):
            totals = {s: sum(n for other, n in rows if other == s) for s in totals}
        wanted, size = 0, self._page_size
        for seq_id, n in totals.items():
            sequence = self._sequences[seq_id]
            wanted += -(-(sequence.length + n) // size) - len(sequence.pages)
        self._check_free(wanted)
        if wanted:
            for seq_id, n in totals.items():
                sequence = self._sequences[seq_id]
                while len(sequence.pages) * size < sequence.length + n:
                    sequence.pages.append(self._take())

    def _check_free(self, wanted: int) -> None:
        if wanted > len(self._free):
            raise RequestError(f"{wanted} KV pages needed, {len(self._free)} are free")

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


def _empty_placement() -> Placement:
    return Placement(array("i"), array("i"), array("i"), array("i"))
