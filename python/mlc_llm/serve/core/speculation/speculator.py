"""Speculative decoding: a step checks guesses of what comes next instead of finding one token.

A row carries the last known token and the drafted ones behind it, and is sampled behind each of
them, with exactly the sampling that a plain step would have there. The model's own tokens are taken
as long as each was the next guess, and the first that was not is taken too. So the tokens are those
of plain decoding, at any temperature and with any seed, however good or bad the guesses are; what a
wrong guess left in the pages is rolled back.

Drafts take only what nobody else wants: pages that are free, places of the batch that are left
over, and steps in which nothing but decoding goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mlc_llm.serve.config import MAX_DRAFT_LENGTH
from mlc_llm.serve.core.request_state import Branch, Status
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.speculation.draft_lengths import Acceptance, DraftLengths
from mlc_llm.serve.core.speculation.draft_sequence import Outlook
from mlc_llm.serve.core.speculation.drafter import Drafter, Offer
from mlc_llm.serve.core.step_plan import Plan

_log = logging.getLogger(__name__)


class Lengths(Protocol):
    """What decides how much is drafted: `DraftLengths`."""

    def choose(
        self, offers: Sequence[tuple[int, float]], cost: Callable[[int, int], float]
    ) -> list[int]: ...

    def learn(self, rows: int, drafted: int, seconds: float) -> None: ...

    def failed(self) -> None: ...


Kind = tuple[int, int]
"""Guesses that are about equally good: the offer's own kind, and how free the model's choice is."""


@dataclass
class _Record:
    """What is known of one branch's guesses."""

    branch: Branch
    kind: Kind = (0, 0)
    """Of its last offer."""
    acceptance: dict[Kind, Acceptance] = field(default_factory=dict)
    """By kind."""


class Speculator:
    """Adds drafts to plans, and learns from what became of them."""

    def __init__(
        self,
        drafter: Drafter,
        scheduler: Scheduler,
        *,
        draft_length: int = 0,
        max_length: int,
    ) -> None:
        """draft_length: as `EngineConfig.spec_draft_length`. max_length: of one sequence."""
        self.lengths: Lengths = DraftLengths(draft_length)
        self._drafter = drafter
        self._scheduler = scheduler
        self._max_length = max_length
        self._records: dict[tuple[int, int], _Record] = {}
        self._by_kind: dict[Kind, Acceptance] = {}
        self._has_warned = False

    def draft(self, plan: Plan) -> None:
        """Put guesses into the rows of a plan where they are likely to pay.

        Whatever goes wrong with them, the plan stays as good as it was.
        """
        self._forget_ended()
        if not plan.rows or plan.prompt_tokens:
            return
        try:
            outlooks = self._outlooks(plan)
        except Exception as error:
            self._give_up(error)
            return
        for i, outlook in outlooks.items():
            self._scheduler.add_drafts(plan, i, outlook.drafts, outlook.samplings)

    def learn(self, plan: Plan) -> None:
        """The plan was carried out; its `verdicts` say what the guesses came to."""
        if plan.rows and not plan.prompt_tokens:
            self.lengths.learn(len(plan.rows), plan.num_drafted, plan.run_seconds)
        for verdict in plan.verdicts:
            record = self._records.get(verdict.branch.key)
            if record is not None:
                for one in (self._acceptance(record, record.kind), self._by_kind[record.kind]):
                    one.learn(verdict.accepted, is_rejected=verdict.is_rejected)
        self._forget_ended()

    def reset(self) -> None:
        """Forget every branch; what was learnt about times and kinds stays."""
        self._records.clear()
        self._drafter.reset()

    def check_integrity(self) -> None:
        """AssertionError unless the drafter's bookkeeping is sound."""
        self._drafter.check_integrity()

    def _outlooks(self, plan: Plan) -> dict[int, Outlook]:
        """The guesses, by row of the plan."""
        most = [min(self._wanted(b), MAX_DRAFT_LENGTH) for b in plan.branches]
        rooms = self._scheduler.draft_rooms(plan, most)
        offers = self._drafter.offers(plan.branches, rooms)
        rated = [self._rated(*one) for one in zip(plan.branches, offers, strict=True)]
        lengths = self.lengths.choose(rated, self._drafter.cost)
        chosen = {i: length for i, length in enumerate(lengths) if length}
        outlooks = {i: Outlook(plan.branches[i], plan.rows[i].samplings[0]) for i in chosen}
        if chosen:
            self._drafter.draft(list(outlooks.values()), list(chosen.values()))
        return {i: outlook for i, outlook in outlooks.items() if outlook.drafts}

    def _wanted(self, branch: Branch) -> int:
        """Guesses behind which the branch could still take a token."""
        max_tokens = branch.request.config.max_tokens
        left = self._max_length - branch.known
        if max_tokens >= 0:
            left = min(left, max_tokens - len(branch.generated))
        return max(left - 1, 0)

    def _rated(self, branch: Branch, offer: Offer) -> tuple[int, float]:
        """An offer, and how likely each token of it is to come true."""
        record = self._records.get(branch.key)
        if record is None:
            record = self._records[branch.key] = _Record(branch)
        freedom = round(2 * min(branch.request.config.temperature, 2.0))
        record.kind = (offer.kind, freedom)
        return offer.length, self._acceptance(record, record.kind).rate

    def _acceptance(self, record: _Record, kind: Kind) -> Acceptance:
        found = record.acceptance.get(kind)
        if found is None:
            prior = self._by_kind.setdefault(kind, Acceptance())
            found = record.acceptance[kind] = Acceptance(prior)
        return found

    def _forget_ended(self) -> None:
        """Branches that gave their sequence back: they ended, or begin again later."""
        gone = [r.branch for r in self._records.values() if r.branch.status is not Status.RUNNING]
        for branch in gone:
            del self._records[branch.key]
            self._drafter.forget(branch)

    def _give_up(self, error: Exception) -> None:
        """A broken drafter costs its drafts and no request."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("drafting failed, decoding goes on without: %s", error, exc_info=error)
        self.lengths.failed()
        self.reset()
