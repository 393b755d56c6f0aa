"""Looking in the text before another drafter is asked."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field
from typing import Any

import pytest
from core_harness import Harness
from spec_tools import Seer, drafted, speculative
from test_eagle_drafter import HEAD, SeeingHead
from test_speculation import REQUESTS, answers, small_runner

from mlc_llm.serve.core.speculation.drafter import Offer
from mlc_llm.serve.core.speculation.eagle import EagleDrafter
from mlc_llm.serve.core.speculation.lookup_first import LookupFirst

REPEATED, NEW, ONE_TOKEN = [5, 6, 7, 8, 9, 5, 6], [1, 2, 3, 4], [5, 6, 7, 8, 6]


@dataclass
class Text:
    """As much of a sequence as is read."""

    all: list[int]
    index: int = 0

    @property
    def key(self) -> tuple[int, int]:
        return (self.index, 0)

    @property
    def known(self) -> int:
        return len(self.all)

    def tokens(self, start: int, end: int) -> list[int]:
        return self.all[start:end]


@dataclass
class Draft:
    sequence: Text
    token_ids: list[int] = field(default_factory=list)

    def push(self, token_id: int) -> bool:
        self.token_ids.append(token_id)
        return True


class Counting(Seer):
    """Offers tokens of kind 1, drafts 300 and up, and costs a second for each row and token."""

    def offers(self, sequences: abc.Sequence[Any], most: abc.Sequence[int]) -> list[Offer]:
        return [Offer(one, 1) for one in most]

    def cost(self, rows: int, depth: int) -> float:
        return float(rows * depth)

    def draft(self, drafts: abc.Sequence[Any], lengths: abc.Sequence[int]) -> None:
        for one, length in zip(drafts, lengths, strict=True):
            for token in range(300, 300 + length):
                one.push(token)


def found(*texts: list[int]) -> tuple[LookupFirst, list[Any], list[Offer]]:
    """The drafter, the sequences of the texts, and the offers for them."""
    drafter = LookupFirst(Counting())
    sequences: list[Any] = [Text(text, i) for i, text in enumerate(texts)]
    return drafter, sequences, drafter.offers(sequences, [4] * len(texts))


def drafts_of(drafter: LookupFirst, sequences: list[Any], lengths: list[int]) -> list[list[int]]:
    drafts: list[Any] = [Draft(one) for one in sequences]
    drafter.draft(drafts, lengths)
    return [one.token_ids for one in drafts]


def test_what_followed_two_tokens_before_is_drafted_and_the_rest_is_asked_for() -> None:
    drafter, sequences, offers = found(REPEATED, NEW, ONE_TOKEN)
    assert [one.length for one in offers] == [4, 4, 4]
    assert drafts_of(drafter, sequences, [3, 2, 1]) == [[7, 8, 9], [300, 301], [300]]


def test_kinds_of_both_are_told_apart() -> None:
    _, _, offers = found(REPEATED, NEW, ONE_TOKEN)
    ours, theirs, also_theirs = (one.kind for one in offers)
    assert theirs == also_theirs != ours


def test_only_rows_of_the_other_drafter_cost_time() -> None:
    drafter, _, _ = found(REPEATED, REPEATED)
    assert drafter.cost(2, 3) == 0.0
    drafter, _, _ = found(REPEATED, NEW, ONE_TOKEN)
    assert (drafter.cost(3, 2), drafter.cost(1, 2)) == (4.0, 2.0)


def test_a_sequence_without_room_gets_no_offer() -> None:
    drafter = LookupFirst(Counting())
    sequences: list[Any] = [Text(REPEATED, 0), Text(NEW, 1)]
    assert [one.length for one in drafter.offers(sequences, [0, 0])] == [0, 0]


@pytest.mark.parametrize("most", [1, 3, 16])
def test_nothing_but_the_speed_changes(most: int) -> None:
    plain = answers(Harness(small_runner()), list(REQUESTS))
    runner = small_runner()
    drafter = LookupFirst(EagleDrafter(SeeingHead(runner)))
    harness = speculative(drafter, runner, HEAD, most=most)
    assert answers(harness, list(REQUESTS)) == plain
    num_drafted, accepted = drafted(harness)
    assert num_drafted >= accepted > 30
