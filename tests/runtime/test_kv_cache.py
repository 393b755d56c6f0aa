"""Groups of layers, each with pages of its own, under random use."""

from __future__ import annotations

import random

import pytest

from mlc_llm.errors import RequestError
from mlc_llm.library.metadata import KVGroupInfo, KVInfo
from mlc_llm.runtime.kv_cache import (
    KVCache,
    group_pages,
    group_windows,
    main_group,
    narrower_windows,
)
from mlc_llm.runtime.limits import RunnerLimits, Window

PAGE, SEQUENCES, STEP, CONTEXT = 4, 3, 17, 400
SIZES = (10, None, 23)


def group(index: int, window: int | None) -> KVGroupInfo:
    return KVGroupInfo((index,), 1, 16, window, query_block=3, fast_query_block=5, kv_split=2)


INFO = KVInfo(PAGE, "float32", tuple(group(i, window) for i, window in enumerate(SIZES)))


def limits(num_pages: int) -> RunnerLimits:
    windows = group_windows(INFO, None)
    return RunnerLimits(
        num_pages, PAGE, SEQUENCES, STEP, CONTEXT, 300,
        window=windows[main_group(windows)], narrower=narrower_windows(windows),
    )  # fmt: skip


def cache_of(num_pages: int) -> KVCache:
    windows = group_windows(INFO, None)
    counts = group_pages(windows, limits(num_pages))
    return KVCache(INFO, counts, SEQUENCES, lambda group, source, target: None, windows)


def test_the_group_that_sees_most_is_counted() -> None:
    windows = group_windows(INFO, None)
    assert main_group(windows) == 1
    assert narrower_windows(windows) == (Window(10), Window(23))
    assert limits(100).windows == (Window(10), Window(23)) and limits(100).window is None
    few, every, more = group_pages(windows, limits(1000))
    assert few < more < every == 1000
    assert group_pages(windows, limits(5)) == (5, 5, 5)


def test_an_engines_window_is_for_the_layers_that_have_none() -> None:
    assert group_windows(INFO, Window(7, 2)) == (Window(10), Window(7, 2), Window(23))


def fits(cache: KVCache, seq_id: int, length: int) -> bool:
    """Whether a sequence may be forked or rolled back to so many tokens, as the scheduler asks."""
    now = cache.length(seq_id)
    return length > 0 and all(
        one.unseen(now - 1, PAGE).stop <= one.unseen(length, PAGE).stop for one in limits(1).windows
    )


@pytest.mark.parametrize("seed", range(20))
def test_narrow_groups_never_lack_a_page(seed: int) -> None:
    """Whatever sequences do, only the main group runs out; nothing has changed then."""
    rng, cache = random.Random(seed), cache_of(60)
    alive: list[int] = []
    for step in range(400):
        act = rng.choice(("add", "place", "place", "place", "fork", "rollback", "remove"))
        if act == "add" and len(alive) < SEQUENCES:
            cache.add(step)
            alive.append(step)
        if not alive:
            continue
        one = rng.choice(alive)
        if act == "place":
            run(cache, one, rng.randint(1, STEP), alive)
        elif act == "fork" and len(alive) < SEQUENCES and fits(cache, one, cache.length(one)):
            if cache.free_pages:
                cache.fork(one, step, cache.length(one))
                alive.append(step)
        elif act == "rollback" and fits(cache, one, cache.length(one) - 1) and cache.free_pages:
            cache.rollback(one, 1)  # its last token is computed again
            run(cache, one, 1, alive)
        elif act == "remove":
            cache.remove(one)
            alive.remove(one)
        cache.check_integrity()
    for seq_id in alive:
        cache.remove(seq_id)
    assert cache.free_pages == 60


def run(cache: KVCache, seq_id: int, count: int, alive: list[int]) -> None:
    """A step of one sequence; it ends if there is no room for it."""
    before = cache.length(seq_id)
    try:
        placed = cache.place([(seq_id, count)])
    except RequestError:
        assert cache.length(seq_id) == before
        cache.check_integrity()
        cache.remove(seq_id)
        alive.remove(seq_id)
        return
    assert list(placed.position) == list(range(before, before + count))
    assert list(placed.groups[1].places) == list(placed.position)
    for narrow in (placed.groups[0], placed.groups[2]):
        assert len(narrow.page_ids) <= len(placed.groups[1].page_ids)
        cut = {p - q for p, q in zip(placed.position, narrow.places, strict=True)}
        assert len(cut) == 1 and cut.pop() % (2 * PAGE) == 0
    cache.trim(seq_id)


def test_a_long_text_needs_few_pages_of_narrow_groups() -> None:
    cache = cache_of(200)
    cache.add(0)
    for _ in range(40):
        placed = cache.place([(0, STEP)])
        cache.trim(0)
    narrow, every, wider = (len(one.page_ids) for one in placed.groups)
    assert every == -(-40 * STEP // PAGE)
    assert narrow < wider < 20


def test_the_tokens_before_are_found_by_a_draft_head_in_steady_steps_too() -> None:
    """Step after step the numbers change where they lie; a cache whose steps are drafts, which are
    laid out anew each time, says the same."""
    info = KVInfo(PAGE, "float32", (group(0, None), group(1, None)))
    steady, anew = (
        KVCache(info, (40, 40), SEQUENCES, lambda *_: None, (None, None), follows=1)
        for _ in range(2)
    )
    chance = random.Random(0)
    for cache in (steady, anew):
        cache.add(0)
        cache.add(1)
    same = 0
    for _ in range(60):
        rows = [(0, 1), (1, 1)] if chance.random() < 0.9 else [(1, chance.randint(1, 5))]
        before = steady._placed
        found, wanted = steady.place(rows), anew.place(rows, drafts=True)
        same += found is before
        assert found.previous == wanted.previous and found.position == wanted.position
        for one, other in zip(found.groups, wanted.groups, strict=True):
            assert one.slots == other.slots and one.places == other.places
    assert 20 < same < 60
    steady.check_integrity()


def test_a_rollback_that_one_group_refuses_changes_none() -> None:
    """A narrow group has given back what the token behind would see."""
    cache = cache_of(60)
    cache.add(0)
    cache.place([(0, 16)])
    for _ in range(20):
        cache.place([(0, 1)])
        cache.trim(0)
    with pytest.raises(AssertionError, match="pages are gone"):
        cache.rollback(0, 8)
    cache.check_integrity()
    assert cache.length(0) == 36
