"""Steps that are started before the one before them has ended.

While a device computes a step, the next one is planned and started: its rows read the tokens that
the step under way chooses where these lie, on the device. So the host's work for a step costs no
time as long as the device has more to do. A row that turns out to be behind an end is computed for
nothing, and its token is rolled back.

Only steps that decode are started early, and only with the pages that are free. A sequence whose
next choice depends on its last token as such (a grammar, penalties, hidden vectors for a drafter)
sits one step out, and so does one that will end by its length. Where they are the larger part,
where prompts are under way or could begin, the step is planned when the one before has ended.
"""

from __future__ import annotations

import logging
from collections import abc

from mlc_llm.errors import EngineDead
from mlc_llm.runtime.batch import NO_ADAPTER, Batch, BatchRow, OverlappingRunner, Sampled
from mlc_llm.runtime.decode_rows import STAND_IN
from mlc_llm.serve.core.decode_groups import DecodeGroups
from mlc_llm.serve.core.sampling import sampling_of
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.step_plan import StepPlan
from mlc_llm.serve.core.step_runner import reason_of, recovered

_log = logging.getLogger(__name__)
LEAST_WAIT_S = 5e-5
"""Shorter, a step had ended before it was asked for."""


class Overlap:
    """Runs plans, and starts the next one meanwhile where that is possible."""

    def __init__(
        self,
        runner: OverlappingRunner,
        scheduler: Scheduler,
        groups: DecodeGroups,
        longest: int,
        clock: abc.Callable[[], float],
    ) -> None:
        """longest: the most tokens of a sequence. clock: gives the time in seconds."""
        self._runner, self._scheduler, self._longest = runner, scheduler, longest
        self._groups = groups
        self._clock = clock
        self._next: tuple[StepPlan, object] | None = None

    def next_plan(self) -> StepPlan | None:
        """The plan under way, if there is one; `run` has to get it then."""
        return None if self._next is None else self._next[0]

    def run(self, plan: StepPlan) -> abc.Sequence[abc.Sequence[Sampled]]:
        """The samples of each row. Raises `EngineDead` as `run_rows` does."""
        started = self._taken(plan)
        try:
            if started is None:
                started = self._runner.submit(Batch(plan.rows))
            self._start_next(plan, started)
            samples = self._collected(plan, started)
            assert len(samples) == len(plan.rows), "the runner answered another batch"
            return samples
        except EngineDead:
            raise
        except Exception as error:
            if started is not None:
                self._undo(plan)
            plan.forget_ended()
            return recovered(self._runner, plan, error)

    def _collected(self, plan: StepPlan, started: object) -> abc.Sequence[abc.Sequence[Sampled]]:
        before = self._clock()
        samples = self._runner.collect(started).samples
        now = self._clock()
        if now - before < LEAST_WAIT_S:
            plan.begun_at = None  # it was over already, and nobody knows since when
        if self._next is not None:
            self._next[0].begun_at = now
        return samples

    def drop(self) -> None:
        """What is under way is nobody's: its requests have ended."""
        self._next = None
        self._scheduler.slots.in_flight = frozenset()

    def _taken(self, plan: StepPlan) -> object | None:
        """What stands for a plan that was started already."""
        if self._next is None:
            return None
        planned, started = self._next
        assert planned is plan, "another plan is under way"
        self.drop()
        return started

    def _start_next(self, plan: StepPlan, started: object) -> None:
        ahead = self._planned(plan)
        if ahead is None:
            return
        try:
            self._next = ahead, self._runner.submit(Batch(ahead.rows), started)
        except EngineDead:
            raise
        except Exception as error:
            # It is planned again when this one has ended, and then fails for all to see.
            _log.info("a step could not be started early: %s", reason_of(error))
            return
        self._scheduler.slots.in_flight = frozenset(ahead.sequences)

    def _undo(self, plan: StepPlan) -> None:
        """The plan has failed: its tokens, and those of the step behind it, leave the pages."""
        plans = [plan] if self._next is None else [self._next[0], plan]
        self.drop()
        for one in plans:
            for row, sequence in zip(one.rows, one.sequences, strict=True):
                if sequence.progress.status is Status.RUNNING:
                    self._runner.rollback_sequence(row.seq_id, len(row.token_ids))

    def _planned(self, plan: StepPlan) -> StepPlan | None:
        """The step behind a plan that is under way; None: it has to be planned later."""
        scheduler = self._scheduler
        if scheduler.may_start:
            return None
        running = scheduler.running
        ahead = self._groups.plan_behind(plan, running)
        if ahead is not None or plan.group is not None:
            return ahead
        self._groups.forget()
        return self._by_row(plan, running) if all(map(_is_plain, plan.rows)) else None

    def _by_row(self, plan: StepPlan, running: abc.Sequence[Sequence]) -> StepPlan | None:
        under_way = {sequence: i for i, sequence in enumerate(plan.sequences)}
        ahead = StepPlan(0)
        for sequence in running:
            row = self._row(sequence, under_way.get(sequence))
            if row is not None:
                ahead.add(row, sequence)
            elif sequence not in under_way:
                return None  # it lacks more than a token
        ahead.decoding = len(ahead.rows)
        if 2 * len(ahead.rows) < len(running) or not ahead.rows:
            return None
        return ahead if self._has_pages(ahead) else None

    def _row(self, sequence: Sequence, at: int | None) -> BatchRow | None:
        """at: its row in the step under way; None: it sits that one out."""
        progress, request = sequence.progress, sequence.request
        assert progress.seq_id is not None
        adapter = NO_ADAPTER if request.adapter is None else request.adapter.slot
        if at is None:
            if not sequence.is_decoding:
                return None
            tokens, samplings = sequence.generated[-1:], [sampling_of(sequence)]
            return BatchRow(progress.seq_id, tokens, samplings, adapter=adapter)
        ends = sequence.left(self._longest) <= 1  # with the token under way
        if not request.is_free or request.handover is not None or ends:
            return None
        samplings = [sampling_of(sequence, ahead=1)]
        return BatchRow(progress.seq_id, STAND_IN, samplings, adapter=adapter, chosen_by=at)

    def _has_pages(self, ahead: StepPlan) -> bool:
        """Each row gets its token without an eviction."""
        pages, needed = self._scheduler.pages, 0
        for row, sequence in zip(ahead.rows, ahead.sequences, strict=True):
            held = sequence.known if row.token_ids is STAND_IN else sequence.progress.computed
            needed += held % pages.page_size == 0
        return needed <= self._runner.free_pages


def _is_plain(row: BatchRow) -> bool:
    """It chooses one token, and does nothing else."""
    return len(row.samplings) == 1 and row.scoring is None
