"""How many KV pages a step may still take."""

from __future__ import annotations

from collections.abc import Collection

from mlc_llm.runtime.batch import Runner


class PageBudget:
    """Counts the free pages against those that the rows of the step will take.

    `length` is always the number of tokens that a sequence has in its pages.
    """

    def __init__(self, runner: Runner) -> None:
        limits = runner.limits
        self._runner = runner
        self.page_size = limits.page_size
        self._window, self._windows = limits.window, limits.windows
        self._has_states = limits.has_states
        self._reserved = 0

    def start_step(self, reserved: int = 0) -> None:
        """Rows have reserved so many pages."""
        self._reserved = reserved

    @property
    def available(self) -> int:
        """Free pages that no row of the step has reserved."""
        return self._runner.free_pages - self._reserved

    def room(self, length: int, wanted: int) -> int:
        """Tokens that fit behind `length` tokens, at most `wanted`."""
        slack = -length % self.page_size
        if wanted <= slack:
            return wanted
        return min(wanted, slack + self.available * self.page_size)

    def reserve(self, length: int, more: int) -> None:
        """A row adds `more` tokens behind `length` tokens."""
        self._reserved += max(-((-length % self.page_size - more) // self.page_size), 0)

    def pages_to_start(self, known: int, shared: int) -> int:
        """Pages for all `known` tokens of a sequence that takes `shared` of them over."""
        needed = -(-known // self.page_size) - shared // self.page_size
        if self._window is not None:
            needed = min(needed, self._window.most_pages(self.page_size))
        return needed

    def can_fork(self, length: int, shared: int, kept: Collection[int] = ()) -> bool:
        """A fork with the first `shared` tokens would see no page that is given back already, and
        would not cut a state. kept: where the sequence keeps one beside its end."""
        if self._has_states and shared != length and shared not in kept:
            return False
        size = self.page_size
        return all(
            window.unseen(length - 1, size).stop <= window.unseen(shared, size).stop
            for window in self._windows
        )
