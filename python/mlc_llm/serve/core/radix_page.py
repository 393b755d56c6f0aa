"""A page of `PagedRadixTree`: a run of tokens, its neighbours, and the ways between pages."""

from __future__ import annotations

from array import array
from typing import TypeAlias

PAGE_TOKENS = 64

Tokens: TypeAlias = "array[int]"


class Page:
    """A run of tokens. Only the root has none."""

    __slots__ = ("children", "end", "ids", "parent", "tokens")

    def __init__(self, parent: Page | None, tokens: Tokens, end: int, ids: set[int]) -> None:
        self.parent = parent
        self.tokens = tokens
        self.end = end
        """Tokens from the root to the end of this page. Splits and merges never change it."""
        self.ids = ids
        """Sequences that go through this page or end with it; never empty but for the root."""
        self.children: dict[int, Page] = {}
        """By first token."""

    @property
    def start(self) -> int:
        return self.end - len(self.tokens)


def walk(page: Page, tokens: Tokens) -> tuple[Page, int, int]:
    """Follow tokens down from the end of a page as far as they agree.

    Returns the last page, how many of its tokens agree, and how many of `tokens` do.
    """
    at, used = 0, len(page.tokens)
    while at < len(tokens) and used == len(page.tokens):
        child = page.children.get(tokens[at])
        if child is None:
            break
        page = child
        used = _common(page.tokens, tokens[at : at + len(page.tokens)])
        at += used
    return page, used, at


def _common(mine: Tokens, other: Tokens) -> int:
    """Length of the common beginning; `other` is not longer. Whole runs are compared at once."""
    if mine == other:
        return len(mine)
    low, high = 0, len(other)  # the first `low` agree, the first `high` + 1 do not
    while low < high:
        middle = (low + high + 1) // 2
        if mine[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def climb(page: Page, length: int) -> Page:
    """The page on the way to the root that holds token number `length` >= 1, counted from 1."""
    while page.start >= length:
        assert page.parent is not None
        page = page.parent
    return page


def join(seq_id: int, page: Page | None, last: Page) -> None:
    """Let a sequence go through all pages from `page` up to `last`, which is left as it is."""
    while page is not None and page is not last and page.parent is not None:
        page.ids.add(seq_id)
        page = page.parent


def can_merge(page: Page) -> bool:
    """Whether no sequence ends with the page and its one child fits behind its tokens."""
    if len(page.children) != 1:
        return False
    (child,) = page.children.values()
    fits = len(page.tokens) + len(child.tokens) <= PAGE_TOKENS
    return fits and len(child.ids) == len(page.ids)
