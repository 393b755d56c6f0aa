"""Speculative decoding: one step verifies draft tokens, instead of computing a single token.

A row carries the last known token and the draft tokens behind it. It is sampled behind each of
them, with the sampling that a plain step would have there. The model's tokens are taken in up to
the first that differs from the draft token at its position, this one included. So the tokens are
those of plain decoding, at any temperature and with any seed, however good the drafts are. The
pages of draft tokens that were not accepted are rolled back.

Drafts use only what nothing else needs: free pages, and tokens that are left over in the batch, in
steps that only decode.
"""

from __future__ import annotations

import logging
from collections import abc
from dataclasses import dataclass, field
from typing import Protocol

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.config_fields import MAX_DRAFT_LENGTH
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.speculation.draft_lengths import AcceptanceRate, DraftLengths
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Drafter, Offer, TornPages
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.core.speculation.verify import DraftVerifier
from mlc_llm.serve.core.step_plan import StepPlan

_log = logging.getLogger(__name__)


class Lengths(Protocol):
    """Decides how many tokens are drafted: `DraftLengths`."""

    def choose(
        self, offers: abc.Sequence[tuple[int, float]], cost: abc.Callable[[int, int], float]
    ) -> list[int]: ...

    def learn(self, rows: int, drafted: int, seconds: float) -> None: ...

    def found_nothing(self) -> None: ...

    def failed(self) -> None: ...

    @property
    def patience(self) -> int: ...


MOST_BESIDE = 1.5
"""A step takes at most so many times as long as its run: the engine may wait behind it. Drafts cost
time beside the run, which is a tenth of a small model's step."""

Kind = tuple[int, int]
"""Drafts that are about equally good: the offer's own kind, and how free the model's choice is."""


@dataclass
class _Record:
    """What is known about the drafts of one sequence."""

    sequence: Sequence
    kind: Kind = (0, 0)
    """The kind of its last offer."""
    rates: dict[Kind, AcceptanceRate] = field(default_factory=dict)


class Speculator:
    """Adds draft tokens to plans, and learns how many the model accepts."""

    def __init__(
        self,
        drafter: Drafter,
        verifier: DraftVerifier,
        *,
        draft_length: int = 0,
        max_length: int,
        max_rows: int,
    ) -> None:
        """draft_length: as `EngineConfig.spec_draft_length`. max_length: of one sequence. max_rows:
        of a step, draft tokens included."""
        self.lengths: Lengths = DraftLengths(draft_length, max_rows=max_rows)
        self.is_drafting = False
        """The last step had drafts; so the next one will, most likely."""
        self.rests = False
        """The last step was planned without a look for drafts."""
        self._left_out = 0
        """Steps since the last look."""
        self._began_at = 0.0
        self._ran: tuple[int, int, float] | None = None
        """Rows, draft tokens and seconds of the last step's run, if its whole time is wanted."""
        self._drafting = 0.0
        """Seconds of that time that the drafter took, as far as it says so: `choose` adds them."""
        self._drafter = drafter
        self._verifier = verifier
        self._max_length = max_length
        self._records: dict[tuple[int, int], _Record] = {}
        self._by_kind: dict[Kind, AcceptanceRate] = {}
        self._has_warned = False

    def looks(self, now: float) -> bool:
        """Whether the next step is one to look for drafts. Asked once a step, where it begins."""
        if self._ran is not None:
            rows, drafted, seconds = self._ran
            whole = now - self._began_at - self._drafting
            self.lengths.learn(rows, drafted, min(whole, MOST_BESIDE * seconds))
        self._began_at, self._ran, self._drafting = now, None, 0.0
        self.rests = self._left_out < self.lengths.patience
        self._left_out = self._left_out + 1 if self.rests else 0
        if self.rests:  # behind an attempt that did not pay
            self.is_drafting = False
        return not self.rests

    def wanted(self, plan: StepPlan) -> dict[int, int]:
        """By row of a plan: how many draft tokens are likely to pay, if any are."""
        self.is_drafting = False
        self._forget_ended()
        lengths: dict[int, int] = {}
        if plan.rows and not plan.prompt_tokens:
            try:
                lengths = self._lengths(plan)
            except Exception as error:
                self._give_up(error)
        self.is_drafting = bool(lengths)
        return lengths

    def draft(
        self, plan: StepPlan, lengths: dict[int, int], clock: abc.Callable[[], float]
    ) -> None:
        """Add draft tokens to the rows of a plan, a list, as `wanted` has said just now.

        A drafter that fails leaves the plan as it was. Raises TornPages.
        """
        start = clock()
        rows, sequences = plan.rows, plan.sequences
        drafts = {i: DraftSequence(sequences[i], rows[i].samplings[0]) for i in lengths}
        try:
            self._drafter.draft(list(drafts.values()), list(lengths.values()))
        except TornPages:
            raise
        except Exception as error:
            self._give_up(error)
            return
        # It may have ended sooner than it said, and what the text drafts takes no time of a head.
        said = self._drafter.cost(len(lengths), max(lengths.values()))
        self._drafting = min(said, clock() - start)
        for i, draft in drafts.items():
            if draft.token_ids:
                self._verifier.add_draft(plan, i, draft)

    def learn(self, plan: StepPlan) -> None:
        """The plan was carried out. Its `acceptances` say what became of the drafts."""
        if plan.rows and not plan.prompt_tokens:
            self._ran = len(plan.rows), plan.num_drafted, plan.run_seconds
        for one in plan.acceptances:
            record = self._records.get(one.sequence.key)
            if record is not None:
                for rate in (self._rate(record, record.kind), self._by_kind[record.kind]):
                    rate.learn(one.accepted, is_rejected=one.is_rejected)
        self._forget_ended()

    def reset(self) -> None:
        """Forget every sequence. What was learnt about times and kinds stays."""
        self._records.clear()
        self._drafter.reset()

    def check_integrity(self) -> None:
        """AssertionError unless the drafter's bookkeeping is sound."""
        self._drafter.check_integrity()

    def _lengths(self, plan: StepPlan) -> dict[int, int]:
        for one in plan.sequences:  # the drafter keeps something of each until it is forgotten
            self._records.setdefault(one.key, _Record(one))
        most = [min(self._wanted(one), MAX_DRAFT_LENGTH) for one in plan.sequences]
        offers = self._drafter.offers(plan.sequences, most)
        if not any(one.length for one in offers):
            self.lengths.found_nothing()
            return {}
        rooms = self._verifier.draft_rooms(plan, [one.length for one in offers])
        rated = [self._rated(*one) for one in zip(plan.sequences, offers, rooms, strict=True)]
        lengths = self.lengths.choose(rated, self._drafter.cost)
        return {i: length for i, length in enumerate(lengths) if length}

    def _wanted(self, sequence: Sequence) -> int:
        """Draft tokens behind which the sequence could still take one more token. Drafters know
        tokens alone, so there are none where a prompt has images."""
        if sequence.request.images:
            return 0
        return max(sequence.left(self._max_length) - 1, 0)

    def _rated(self, sequence: Sequence, offer: Offer, room: int) -> tuple[int, float]:
        """What there is room for of an offer, and how likely the model accepts each token of it."""
        record = self._records[sequence.key]
        freedom = round(2 * min(sequence.request.config.temperature, 2.0))
        record.kind = (offer.kind, freedom)
        return room, self._rate(record, record.kind).hoped

    def _rate(self, record: _Record, kind: Kind) -> AcceptanceRate:
        found = record.rates.get(kind)
        if found is None:
            prior = self._by_kind.setdefault(kind, AcceptanceRate())
            found = record.rates[kind] = AcceptanceRate(prior)
        return found

    def _forget_ended(self) -> None:
        """Forget sequences without a slot: they have ended, or begin again later."""
        records = self._records.values()
        gone = [r.sequence for r in records if r.sequence.progress.status is not Status.RUNNING]
        for sequence in gone:
            del self._records[sequence.key]
            self._drafter.forget(sequence)

    def _give_up(self, error: Exception) -> None:
        """A drafter that is broken costs its drafts and no request."""
        if not self._has_warned:
            self._has_warned = True
            _log.warning("drafting failed, decoding goes on without: %s", error, exc_info=error)
        self.lengths.failed()
        self.reset()


def make_speculator(
    drafter: Drafter | None,
    verifier: DraftVerifier,
    config: EngineConfig,
    max_length: int,
) -> Speculator | None:
    """The speculator that `config` asks for; None without a drafter.

    drafter: used unless `config` names a drafter of the core's own. max_length: of one sequence.
    """
    if config.speculative_mode == "prompt_lookup":
        drafter = PromptLookup()
    if drafter is None:
        return None
    return Speculator(
        drafter,
        verifier,
        draft_length=config.spec_draft_length,
        max_length=max_length,
        max_rows=verifier.max_rows,
    )
