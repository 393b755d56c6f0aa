"""The steps of an engine core: a plan, a call into the model, and what comes of it."""

from __future__ import annotations

from collections import abc
from typing import cast

from mlc_llm.runtime.batch import OverlappingRunner, Runner, Sampled
from mlc_llm.runtime.decode_rows import ChosenTokens
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.accepted_requests import AcceptedRequests, Outputs
from mlc_llm.serve.core.decode_groups import DecodeGroups
from mlc_llm.serve.core.overlap import Overlap
from mlc_llm.serve.core.postprocess import Postprocessor
from mlc_llm.serve.core.queue_note import QueueNote
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.speculator import Speculator, make_speculator
from mlc_llm.serve.core.speculation.verify import DraftVerifier
from mlc_llm.serve.core.step_plan import StepPlan
from mlc_llm.serve.core.step_runner import run_rows
from mlc_llm.serve.core.take_rows import RowTaker
from mlc_llm.serve.core.take_tokens import take_tokens
from mlc_llm.serve.core.telemetry import Telemetry


class Steps:
    """One step behind the other; the next one may be started while one computes."""

    def __init__(
        self,
        runner: Runner,
        scheduler: Scheduler,
        postprocessor: Postprocessor,
        telemetry: Telemetry,
        requests: AcceptedRequests,
        *,
        config: EngineConfig,
        drafter: Drafter | None,
        longest: int,
        by_tokens: bool,
    ) -> None:
        """longest: tokens of a sequence, at most. by_tokens: tokens alone decide about ends. The
        others: as of `EngineCore`."""
        self._runner, self._scheduler, self._telemetry = runner, scheduler, telemetry
        self._postprocessor, self._requests = postprocessor, requests
        verifier = DraftVerifier(runner, scheduler.pages)
        self.speculator = make_speculator(drafter, verifier, config, longest)
        """Who drafts tokens; None: nobody."""
        self._taker = RowTaker(scheduler, postprocessor, verifier, telemetry, requests)
        self._overlap = self._overlapping(longest) if by_tokens else None
        self._queue_note = QueueNote(config)

    def next(self) -> Outputs:
        """Makes a step. Returns the outputs of its requests."""
        plan = self._plan()
        samples = self._run(plan)
        outputs = self._update(plan, samples)
        self.forget()
        return outputs

    def forget(self) -> None:
        """A step that is under way is nobody's if there is no request."""
        if self._overlap is not None and not self._requests:
            self._overlap.drop()

    def reset(self) -> None:
        """Forgets the step that is under way, and all that was learnt for drafts."""
        if self._overlap is not None:
            self._overlap.drop()
        if self.speculator is not None:
            self.speculator.reset()

    def check_integrity(self) -> None:
        """AssertionError unless what drafts agrees with itself."""
        if self.speculator is not None:
            self.speculator.check_integrity()

    def _overlapping(self, longest: int) -> Overlap | None:
        """Rows are planned in groups; and started early where nobody drafts, and the runner can do
        it."""
        groups = DecodeGroups(longest, self._runner)
        self._scheduler.groups = groups
        if self.speculator is not None or not self._runner.limits.overlaps:
            return None
        runner = cast("OverlappingRunner", self._runner)
        return Overlap(runner, self._scheduler, groups, longest, self._telemetry.now)

    def _plan(self) -> StepPlan:
        """The step that is under way already, or else a new one."""
        under_way = None if self._overlap is None else self._overlap.next_plan()
        if under_way is not None:
            return under_way
        speculator = self.speculator
        plan = self._scheduler.schedule(by_row=speculator is not None and speculator.is_drafting)
        if self._queue_note.is_due:
            self._queue_note.look(self._scheduler.num_running, self._scheduler.num_waiting)
        if speculator is None or not speculator.looks(self._telemetry.now()):
            return plan
        return self._with_drafts(plan, speculator)

    def _with_drafts(self, plan: StepPlan, speculator: Speculator) -> StepPlan:
        """Add draft tokens to rows of the plan, where that is wanted and likely to pay. Rows by
        column are planned again: a draft is an object's."""
        start = self._telemetry.now()
        lengths = speculator.wanted(plan)
        if lengths and plan.group is not None:
            planned = plan.sequences
            plan = self._scheduler.schedule(by_row=True)
            assert plan.sequences == planned, "the same rows"
        if lengths:
            speculator.draft(plan, lengths, self._telemetry.now)
            self._telemetry.note_drafts(plan)
        plan.draft_seconds = self._telemetry.now() - start
        return plan

    def _run(self, plan: StepPlan) -> abc.Sequence[abc.Sequence[Sampled]]:
        """The samples of each row; the time that they took goes into the plan."""
        telemetry = self._telemetry
        if plan.lookups or plan.preempted:
            telemetry.note_plan(plan)
        if not plan.sequences:
            return []
        if telemetry.trace is not None:
            telemetry.note_rows(plan, "start")
        start, overlap = telemetry.now(), self._overlap
        samples = run_rows(self._runner, plan) if overlap is None else overlap.run(plan)
        plan.ended_at = telemetry.now()
        plan.run_seconds = plan.ended_at - (start if plan.begun_at is None else plan.begun_at)
        if telemetry.trace is not None:
            telemetry.note_rows(plan, "finish")
        self._scheduler.prefill_budget.learn(
            plan.draft_seconds + plan.run_seconds,
            prompt_tokens=plan.prompt_tokens,
            decoding=plan.decoding,
        )
        return samples

    def _update(self, plan: StepPlan, samples: abc.Sequence[abc.Sequence[Sampled]]) -> Outputs:
        """Take in the samples. Returns the outputs of each request of the plan."""
        now = plan.ended_at
        if type(samples) is ChosenTokens and self._postprocessor.knows(samples.ids):
            outputs, rows = take_tokens(plan, samples.ids, now)
        else:
            outputs, rows = [], range(len(samples))
        for i in rows:
            self._taker.take(plan, i, samples[i], now)
        if self.speculator is not None and (rows or not self.speculator.rests):
            self.speculator.learn(plan)  # also that a sequence has ended
        self._telemetry.record_step(plan)
        if rows:
            outputs += self._requests.report([plan.sequences[i] for i in rows])
        return outputs
