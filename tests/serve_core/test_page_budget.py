"""Pages are counted right: against sequences that grow a token at a time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mlc_llm.serve.core.page_budget import PageBudget
from mlc_llm.testing.fake_runner import FakeRunner

SIZE = 4


def pages(tokens: int) -> int:
    """Pages of a sequence, by counting the tokens that begin one."""
    return sum(1 for position in range(tokens) if position % SIZE == 0)


@given(
    st.integers(0, 12),
    st.lists(st.tuples(st.integers(0, 3 * SIZE), st.integers(1, 3 * SIZE)), max_size=6),
)
def test_rows_get_what_fits_and_no_page_more(free: int, rows: list[tuple[int, int]]) -> None:
    budget = PageBudget(FakeRunner(num_pages=free, page_size=SIZE))
    budget.start_step()
    left = free
    for length, wanted in rows:
        room = budget.room(length, wanted)
        grown = [pages(length + more) - pages(length) for more in range(wanted + 1)]
        assert room == max(more for more in range(wanted + 1) if grown[more] <= left)
        budget.reserve(length, room)
        left -= grown[room]
        assert budget.available == left
    budget.start_step()
    assert budget.available == free


def test_a_start_needs_pages_for_all_that_is_not_shared() -> None:
    budget = PageBudget(FakeRunner(num_pages=8, page_size=SIZE))
    assert budget.pages_to_start(known=9, shared=0) == 3
    assert budget.pages_to_start(known=9, shared=4) == 2
    assert budget.pages_to_start(known=9, shared=7) == 2  # the second page is copied
    assert budget.can_fork(9, 5)  # no window: nothing is ever given back
