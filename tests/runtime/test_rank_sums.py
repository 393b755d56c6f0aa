"""Sums over ranks, and what they say to each other."""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pytest

from mlc_llm.backends.cpu.rank_sums import PIECE, SharedSums
from mlc_llm.backends.ranks import meeting as meeting_file
from mlc_llm.backends.ranks.meeting import Meeting, shared_file
from mlc_llm.errors import EngineDead
from mlc_llm.runtime.kv_cache import Placements
from mlc_llm.runtime.ranks.messages import copy_message, step_message, step_of, tables_of
from mlc_llm.runtime.steady_rows import Placement
from mlc_llm.runtime.step_inputs import StepNumbers


def no_check() -> None:
    """All ranks live."""


@pytest.fixture(params=[2, 3])
def ranks(request: pytest.FixtureRequest) -> Iterator[list[SharedSums]]:
    file = shared_file(request.param)
    yield [
        SharedSums(Meeting(file, rank, request.param, no_check)) for rank in range(request.param)
    ]
    os.close(file)


def together(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()


def together_soon(work: Callable[[int], None], count: int) -> None:
    """All ranks, which must end at once."""
    started = time.monotonic()
    together([partial(work, rank) for rank in range(count)])
    assert time.monotonic() - started < 10


def what_differs(errors: dict[int, str], count: int) -> list[str]:
    """What ranks say that have seen a difference; all ranks have raised, the others for that."""
    assert sorted(errors) == list(range(count))
    named = [one for one in errors.values() if "do not compute the same step" in one]
    assert {one for one in errors.values() if one not in named} <= {"the ranks were given up"}
    return named


@pytest.mark.parametrize("done", [0, 2**32 - 3])
def test_all_ranks_get_the_same_sum(ranks: list[SharedSums], done: int) -> None:
    """Of any size, in the order of the ranks, and also where the words begin anew."""
    rng = np.random.default_rng(0)
    sizes = [1, 7, 64, PIECE, PIECE + 1, 2 * PIECE + 5] + [33] * 40
    parts = [[rng.standard_normal(size).astype(np.float32) for size in sizes] for _ in ranks]
    found = [[np.empty(size, np.float32) for size in sizes] for _ in ranks]
    for one in ranks:
        one._meeting._done = done
        for word in one._meeting._words:
            word.write(done % 2**32)

    def work(rank: int) -> None:
        for part, total in zip(parts[rank], found[rank], strict=True):
            ranks[rank].add_arrays(part, total)

    together([lambda rank=rank: work(rank) for rank in range(len(ranks))])  # type: ignore[misc]
    for i in range(len(sizes)):
        exact = parts[0][i]
        for one in parts[1:]:
            exact = exact + one[i]
        assert all(totals[i].tobytes() == exact.tobytes() for totals in found)


@pytest.mark.parametrize("size", [2, 4, PIECE + 3, 2 * PIECE])
def test_sums_of_different_sizes_end_all_ranks_at_once(ranks: list[SharedSums], size: int) -> None:
    """The last rank has another number of numbers: also if it is of more pieces."""
    errors: dict[int, str] = {}

    def work(rank: int) -> None:
        own = size if rank == len(ranks) - 1 else 3
        ranks[rank].add_arrays(np.ones(7, np.float32), np.empty(7, np.float32))
        try:
            for _ in range(2):
                ranks[rank].add_arrays(np.ones(own, np.float32), np.empty(own, np.float32))
        except EngineDead as error:
            errors[rank] = str(error)

    together_soon(work, len(ranks))
    named = what_differs(errors, len(ranks))
    assert named and all("adds 3" in one and f"adds {size}" in one for one in named)


@pytest.mark.parametrize("short", [0, -1])
def test_another_number_of_sums_ends_all_ranks_at_once(ranks: list[SharedSums], short: int) -> None:
    """One rank, the first or the last, ends its step a sum earlier than the others."""
    errors: dict[int, str] = {}

    def work(rank: int) -> None:
        try:
            for steps, sums in enumerate((3, 2 if rank == short % len(ranks) else 3)):
                for _ in range(sums):
                    ranks[rank].add_arrays(np.ones(7, np.float32), np.empty(7, np.float32))
                ranks[rank].end_step()
                assert steps == 0, "the second step has no end"
        except EngineDead as error:
            errors[rank] = str(error)

    together_soon(work, len(ranks))
    named = what_differs(errors, len(ranks))
    assert named and all(f"rank {short % len(ranks)} has ended its step" in one for one in named)
    assert all("adds 7 numbers" in one for one in named)


def test_a_rank_that_waits_is_told_to_give_up(ranks: list[SharedSums]) -> None:
    errors: list[str] = []

    def wait() -> None:
        try:
            ranks[0].add_arrays(np.ones(3, np.float32), np.empty(3, np.float32))
        except EngineDead as error:
            errors.append(str(error))

    together([wait, ranks[1]._meeting.give_up])
    assert errors == ["the ranks were given up"]


def test_waiting_has_an_end(ranks: list[SharedSums], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting_file, "STALLED_S", 0.1)
    with pytest.raises(EngineDead, match="rank 1 has computed nothing"):
        ranks[0].add_arrays(np.ones(3, np.float32), np.empty(3, np.float32))


def test_messages_are_what_they_were_made_of() -> None:
    groups = [
        Placement(array("i", [5, 6]), array("i", [0, 1]), array("i", [0, 2, 0]), array("i", [3])),
        Placement(array("i", [1, 2]), array("i", [0, 1]), array("i", [0, 2, 0]), array("i")),
    ]
    tokens, position = array("i", [7, 8]), array("i", [0, 1])
    numbers = StepNumbers(tokens, Placements(position, groups, None), array("i", [1]), 2, None)
    message = step_message(numbers)
    assert step_of(tables_of(message[8:])) == numbers._replace(logit_rows=array("i"))
    copied = tables_of(copy_message(1, [4, 5], [6, 7])[8:])
    assert [list(one) for one in copied] == [[1, 1], [4, 5], [6, 7]]
