"""`PagedRadixTree`: many token sequences in one tree, where common beginnings are stored once.

A page holds up to 64 tokens and is compared as a whole. A sequence always ends at the end of a
page. Where two sequences part, the page is split; when that is no longer needed, it is merged.
Every page knows the sequences that go through it. So a match costs one comparison a page.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from mlc_llm.errors import InvalidField
from mlc_llm.serve.core.radix_page import PAGE_TOKENS, Page, Tokens, can_merge, climb, join, walk

BLOCK_PAGES = 64
"""The capacity grows and shrinks by so many pages at once."""


class PagedRadixTree:
    """Sequences of token ids under integer names. Token ids are in [0, 2^31).

    Every method raises `InvalidField` for a name that is not there (or is there already), a count
    out of range, or values that are no tokens. Then it changes nothing.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget every sequence; all pages are free again."""
        self._root = Page(None, array("i"), 0, set())
        self._ends: dict[int, Page] = {}
        self._num_pages = 0

    def add(self, seq_id: int) -> None:
        """Add a sequence without tokens."""
        self._check_new(seq_id)
        self._ends[seq_id] = self._root

    def remove(self, seq_id: int) -> None:
        """Forget a sequence. Pages that no other one needs are free."""
        self._leave(seq_id, self._end(seq_id), self._root)
        del self._ends[seq_id]

    def extend(self, seq_id: int, tokens: Sequence[int]) -> None:
        """Append tokens. Pages of other sequences with the same tokens are shared."""
        first, new = self._end(seq_id), _as_tokens(tokens)
        page, used, matched = walk(first, new)
        if used < len(page.tokens):
            page = self._split(page, used)
        join(seq_id, page, first)
        self._ends[seq_id] = self._grow(page, seq_id, new[matched:])
        self._tidy(first)  # the sequence does not end there any more

    def rollback(self, seq_id: int, num_tokens: int) -> None:
        """Forget the last `num_tokens` tokens, which may be all of them."""
        end = self._end(seq_id)
        _check_count("num_tokens", num_tokens, 0, end.end)
        page = self._cut(end, end.end - num_tokens)
        self._ends[seq_id] = page
        self._leave(seq_id, end, page)

    def fork(self, seq_id: int, parent: int, offset: int) -> None:
        """Add a sequence with the first `offset` >= 1 tokens of `parent`."""
        self._check_new(seq_id)
        end = self._end(parent)
        _check_count("offset", offset, 1, end.end)
        page = self._cut(end, offset)
        self._ends[seq_id] = page
        join(seq_id, page, self._root)

    def match(self, tokens: Sequence[int]) -> tuple[int, tuple[int, ...]]:
        """The longest beginning of `tokens` that a sequence begins with: its length, and the names
        of all sequences that begin with it, in ascending order (none when the length is 0)."""
        page, _, length = walk(self._root, _as_tokens(tokens))
        return length, tuple(sorted(page.ids)) if length else ()

    def has(self, seq_id: int) -> bool:
        """Whether there is a sequence of this name."""
        return seq_id in self._ends

    def get(self, seq_id: int) -> list[int]:
        """All tokens of a sequence."""
        page, parts = self._end(seq_id), []
        while page.parent is not None:
            parts.append(page.tokens)
            page = page.parent
        return [token for part in reversed(parts) for token in part]

    def get_length(self, seq_id: int) -> int:
        """How many tokens a sequence has."""
        return self._end(seq_id).end

    def get_token(self, seq_id: int, position: int) -> int:
        """One token of a sequence, counted from 0."""
        page = self._end(seq_id)
        _check_count("position", position, 0, page.end - 1)
        page = climb(page, position + 1)
        return page.tokens[position - page.start]

    def free_capacity(self) -> int:
        """Tokens that fit in the free pages of the blocks in use; at least one block is."""
        blocks = max(1, -(-self._num_pages // BLOCK_PAGES))
        return (blocks * BLOCK_PAGES - self._num_pages) * PAGE_TOKENS

    @property
    def num_sequences(self) -> int:
        return len(self._ends)

    def check_integrity(self) -> None:
        """AssertionError unless pages, names and lengths agree and nothing is left to merge."""
        through: dict[int, int] = {}
        pages, left = 0, [self._root]
        while left:
            page = left.pop()
            left += page.children.values()
            for token, child in page.children.items():
                assert child.parent is page and child.tokens[0] == token, "wrong link"
                assert child.start == page.end, "wrong length"
                assert page.parent is None or child.ids <= page.ids, "a sequence jumps"
            if page.parent is not None:
                pages += 1
                assert 0 < len(page.tokens) <= PAGE_TOKENS and page.ids, "empty or too long"
                assert not can_merge(page), "pages left to merge"
                for seq_id in page.ids:
                    through[seq_id] = through.get(seq_id, 0) + len(page.tokens)
        assert pages == self._num_pages, "pages are lost"
        assert through == {s: page.end for s, page in self._ends.items() if page.end}
        assert all(s in page.ids for s, page in self._ends.items() if page is not self._root)

    def _end(self, seq_id: int) -> Page:
        page = self._ends.get(seq_id)
        if page is None:
            raise InvalidField("seq_id", seq_id, "there is no such sequence in the tree")
        return page

    def _check_new(self, seq_id: int) -> None:
        if not isinstance(seq_id, int) or isinstance(seq_id, bool):
            raise InvalidField("seq_id", seq_id, "should be an integer")
        if seq_id in self._ends:
            raise InvalidField("seq_id", seq_id, "the tree has a sequence of this name")

    def _cut(self, end: Page, length: int) -> Page:
        """The page above (or at) `end` that ends after `length` tokens, split off if need be."""
        if length == 0:
            return self._root
        page = climb(end, length)
        return page if length == page.end else self._split(page, length - page.start)

    def _split(self, page: Page, used: int) -> Page:
        """Make two of a page; returns the upper one, with the first `used` tokens.

        The lower one is the old object, so that sequences that end there still do. Each half may
        now fit into one page with its neighbour.
        """
        parent = page.parent
        assert parent is not None
        upper = Page(parent, page.tokens[:used], page.start + used, set(page.ids))
        parent.children[page.tokens[0]] = upper
        page.tokens = page.tokens[used:]
        page.parent = upper
        upper.children[page.tokens[0]] = page
        self._num_pages += 1
        self._tidy(page)
        self._tidy(parent)
        return upper

    def _tidy(self, page: Page) -> None:
        """Merge a page into its only child if nothing needs it and both fit in one.

        The child stays, for the reason given in `_split`.
        """
        if page.parent is None or not can_merge(page):
            return
        (child,) = page.children.values()
        child.tokens = page.tokens + child.tokens
        child.parent = page.parent
        page.parent.children[child.tokens[0]] = child
        self._num_pages -= 1

    def _grow(self, page: Page, seq_id: int, tokens: Tokens) -> Page:
        """Append tokens behind a page: in it if it is the sequence's own, then in new pages."""
        room = PAGE_TOKENS - len(page.tokens) if page.ids == {seq_id} else 0
        if room > 0:
            page.tokens += tokens[:room]
            page.end = page.end + len(tokens[:room])
        for at in range(room, len(tokens), PAGE_TOKENS):
            run = tokens[at : at + PAGE_TOKENS]
            child = Page(page, run, page.end + len(run), {seq_id})
            page.children[run[0]] = child
            page = child
            self._num_pages += 1
        return page

    def _leave(self, seq_id: int, page: Page, last: Page) -> None:
        """Take a sequence out of all pages from `page` up to `last`, which it stays in."""
        survivor = None
        while page is not last:
            parent = page.parent
            assert parent is not None
            page.ids.discard(seq_id)
            if page.ids:
                survivor = survivor or page
            else:
                del parent.children[page.tokens[0]]
                self._num_pages -= 1
            page = parent
        # Only this page may have lost an end or a fork; for the pages above, nothing has changed.
        self._tidy(survivor or last)


def _as_tokens(tokens: Sequence[int]) -> Tokens:
    if isinstance(tokens, (str, bytes, bytearray)):
        raise InvalidField("tokens", tokens, "should be token ids")
    try:
        return array("i", tokens)  # those of images are negative
    except (TypeError, OverflowError) as error:
        raise InvalidField("tokens", tokens, f"should be token ids ({error})") from error


def _check_count(name: str, value: int, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise InvalidField(name, value, f"should be an integer in range [{low}, {high}]")
