"""Who computes how many tokens in the next step.

The scheduler owns the waiting and the running sequences and writes their `progress`. Both queues
together are always in the order of service: the running sequences are the front part. A plan
follows that order, so decoding sequences come first, then the prompt that is under way, then new
ones. When pages lack, the prefix cache gives up its sequences first. Then the last running sequence
is preempted: it gives its pages back and is computed again later.

A step costs O(running), never O(waiting).
"""

from __future__ import annotations

from collections import OrderedDict, abc

from mlc_llm.runtime.batch import NO_ADAPTER, BatchRow, Runner, Scoring
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.decode_groups import DecodeGroups
from mlc_llm.serve.core.images import begun_image, row_images, whole_images
from mlc_llm.serve.core.page_budget import PageBudget
from mlc_llm.serve.core.prefill_budget import PrefillBudget
from mlc_llm.serve.core.sampling import sampling_of
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.slots import Slots
from mlc_llm.serve.core.step_plan import StepPlan


class Scheduler:
    """First come, first served: no sequence overtakes one that was added before it."""

    def __init__(self, runner: Runner, config: EngineConfig) -> None:
        self._runner = runner
        self._max_batch_tokens = runner.limits.max_batch_tokens
        self._only_whole_rows = runner.limits.is_encoder
        self._whole_images = runner.limits.whole_images
        self._prefill_alone = config.prefill_mode == "chunked"
        self.prefill_budget = PrefillBudget(config.prefill_time_budget_ms / 1000)
        self.pages = PageBudget(runner)
        self.slots = Slots(runner, config, self.pages)
        # A running sequence must get one token in every step.
        self._max_running = min(self.slots.num_slots, self._max_batch_tokens)
        self._waiting: OrderedDict[tuple[int, int], Sequence] = OrderedDict()
        self._running: list[Sequence] = []
        self.num_preemptions = 0
        self.groups: DecodeGroups | None = None
        """Plans decoding of all sequences at once; None: each row is planned by itself."""

    @property
    def running(self) -> list[Sequence]:
        """Those with a slot, in the order of service."""
        return self._running

    @property
    def waiting(self) -> abc.Iterable[Sequence]:
        """Those without one, in the order of service."""
        return self._waiting.values()

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    @property
    def may_start(self) -> bool:
        """A waiting sequence could get a slot in the next step."""
        return bool(self._waiting) and len(self._running) < self._max_running

    def add(self, request: RequestState) -> None:
        """Queue all sequences of a request behind everything else."""
        for sequence in request.sequences:
            self._waiting[sequence.key] = sequence

    def finish(self, sequence: Sequence, status: Status) -> None:
        """End a sequence, wherever it stands.

        Its pages are free afterwards, or the prefix cache keeps them if it ended well.
        """
        progress = sequence.progress
        assert status.is_end and not progress.status.is_end
        if progress.status is Status.RUNNING:
            self._running.remove(sequence)
            if status in _ENDED_WELL:
                self.slots.keep(sequence)
            else:
                self.slots.release(sequence)
        else:
            del self._waiting[sequence.key]
        progress.status = status

    def end_all(self, requests: abc.Iterable[RequestState], status: Status) -> None:
        """End every sequence and forget everything, whatever state it is in.

        The runner hears nothing: it is reset as well.
        """
        self._waiting.clear()
        self._running.clear()
        self.slots.clear()
        for request in requests:
            for sequence in request.alive:
                sequence.progress.status = status

    def schedule(self, *, by_row: bool = False) -> StepPlan:
        """Plan a step. The plan is empty only when nothing runs or waits. by_row: its rows are a
        list, whatever they are."""
        plan, groups = None, None if by_row else self.groups
        if groups is not None and self._running and not (self._waiting and self.may_start):
            plan = groups.plan(self._running)
        return plan or self._plan()

    def _plan(self) -> StepPlan:
        plan = StepPlan(self._max_batch_tokens, self._runner.limits.max_scores)
        if self.groups is not None:
            self.groups.forget()
        self.pages.start_step()
        if self._prefill_alone:
            self._plan_prefill(plan)
            if plan.rows:
                return plan
        self._plan_running(plan)
        self._plan_waiting(plan)
        while not plan.rows and self._running:  # prompts under way that block each other
            self._preempt(plan)
            self._plan_running(plan)
            self._plan_waiting(plan)
        return plan

    def check_integrity(self) -> None:
        """AssertionError unless queues, slots and counts agree with each other."""
        keys = [sequence.key for sequence in self._running] + list(self._waiting)
        assert keys == sorted(set(keys)), "queues are not in the order of service"
        running = [sequence.progress for sequence in self._running]
        waiting = [sequence.progress for sequence in self._waiting.values()]
        assert all(one.status is Status.RUNNING for one in running)
        assert all(one.status is Status.WAITING for one in waiting)
        assert all(sequence.remaining >= 1 for sequence in self._running)
        assert all(one.computed == 0 and one.seq_id is None for one in waiting)
        if self.groups is not None:
            self.groups.check_integrity(self._running)
        self.slots.check_integrity(self._running)
        self._runner.check_integrity()

    def _plan_prefill(self, plan: StepPlan) -> None:
        """Only prompts: the one under way, then new ones."""
        if self._running and self._running[-1].is_prefilling:
            self._extend(plan, self._running[-1])
        self._plan_waiting(plan)

    def _plan_running(self, plan: StepPlan) -> None:
        """Sequences that lack one token come first: a prompt or forced text can wait.

        Only these others cause preemptions. So no sequence is preempted that has its row already.
        """
        longer = []
        for sequence in list(self._running):
            if sequence.remaining > 1:
                longer.append(sequence)
            elif sequence.progress.status is Status.RUNNING:
                self._extend(plan, sequence)
        plan.prompts = len(longer) + len(self._waiting)
        for sequence in longer:
            if sequence.progress.status is Status.RUNNING:
                self._extend(plan, sequence)

    def _plan_waiting(self, plan: StepPlan) -> None:
        while self._waiting and plan.is_open and plan.budget > 0:
            sequence = next(iter(self._waiting.values()))
            num_running, prefix = len(self._running), None
            if num_running < self._max_running:
                prefix = self.slots.find_prefix(plan, sequence, num_running)
            if prefix is None:
                plan.is_open = False
                return
            self.slots.start(sequence, prefix)
            del self._waiting[sequence.key]
            self._running.append(sequence)
            self._extend(plan, sequence)

    def _extend(self, plan: StepPlan, sequence: Sequence) -> None:
        """Add a row with as many of the remaining tokens as fit, if any do."""
        pages, progress = self.pages, sequence.progress
        remaining, is_decoding = sequence.remaining, sequence.is_decoding
        wanted = min(remaining, plan.budget)
        if plan.decoding and not is_decoding:
            wanted = min(wanted, self._allowance(plan))
        if sequence.request.images and self._whole_images:
            wanted = self._up_to_images(plan, sequence, wanted)
        scores = None if is_decoding else sequence.scores
        if scores is not None:
            wanted = min(wanted, scores.most_tokens(progress.computed, plan.scores))
        count = pages.room(progress.computed, wanted)
        if count < wanted:
            self._make_room(plan, sequence, wanted)
            count = pages.room(progress.computed, wanted)
            if self._whole_images:
                count = whole_images(sequence.request.images, progress.computed, count)
        is_part = self._only_whole_rows and count < remaining
        if progress.status is not Status.RUNNING or count <= 0 or is_part:
            plan.is_open = False
            return
        plan.budget -= count
        if is_decoding:
            plan.decoding += 1
        else:
            plan.prompt_tokens += count
        if count < remaining:
            plan.is_open = False
        pages.reserve(progress.computed, count)
        scoring = None if scores is None else scores.scoring(progress.computed, count)
        plan.scores -= 0 if scoring is None else len(scoring.next_ids)
        row = _row(sequence, count, scoring, is_whole=count == remaining)
        row.keep_states = self.slots.states_to_keep(sequence, count)
        plan.add(row, sequence)

    def _up_to_images(self, plan: StepPlan, sequence: Sequence, wanted: int) -> int:
        """The tokens of a row that cuts no image: an image is computed in one step, however little
        time prompts may take."""
        images, computed = sequence.request.images, sequence.progress.computed
        begun = min(begun_image(images, computed), plan.budget)
        return whole_images(images, computed, max(wanted, begun))

    def _allowance(self, plan: StepPlan) -> int:
        """Prompt tokens that the clock still allows beside the rows that decode."""
        budget = self.prefill_budget.allowance(self._max_batch_tokens, plan.prompts)
        return budget - plan.prompt_tokens

    def _make_room(self, plan: StepPlan, sequence: Sequence, wanted: int) -> None:
        """Evict until `wanted` tokens of the sequence fit, or nothing is left to evict.

        A sequence that lacks one token must get it. For that, preempt the last sequences until the
        token fits or the sequence itself is preempted.
        """
        pages, progress = self.pages, sequence.progress
        while pages.room(progress.computed, wanted) < wanted and self._evict():
            pass
        must = sequence.remaining == wanted == 1
        while (
            must and progress.status is Status.RUNNING and not pages.room(progress.computed, wanted)
        ):
            if not self._evict():
                self._preempt(plan)

    def _evict(self) -> bool:
        """Take a sequence from the prefix cache; a pinned one only if a single sequence runs."""
        return self.slots.cache.evict(even_pinned=len(self._running) == 1)

    def _preempt(self, plan: StepPlan) -> None:
        """Send the last running sequence back to the front of the queue.

        All its known tokens are computed again later. No token is sampled twice.
        """
        sequence = self._running.pop()
        self.slots.release(sequence)
        sequence.progress.status = Status.WAITING
        self._waiting[sequence.key] = sequence
        self._waiting.move_to_end(sequence.key, last=False)
        self.num_preemptions += 1
        plan.preempted += (sequence,)
        plan.is_open = False  # else the pages just won would go straight back


_ENDED_WELL = (Status.STOPPED, Status.LENGTH)


def _row(sequence: Sequence, count: int, scoring: Scoring | None, *, is_whole: bool) -> BatchRow:
    """The next `count` tokens; a whole row, up to the last known token, is sampled. A prompt that
    is scored is computed exactly, also by sequences that do not score it, and a second time."""
    seq_id, computed = sequence.progress.seq_id, sequence.progress.computed
    assert seq_id is not None
    samplings = [sampling_of(sequence)] if is_whole else []
    of_prompt = min(max(len(sequence.request.prompt) - computed, 0), count)
    if sequence.request.scores is not None:
        of_prompt = 0
    tokens = sequence.tokens(computed, computed + count)
    second_at = sequence.request.second_at
    adapter = sequence.request.adapter
    slot = NO_ADAPTER if adapter is None else adapter.slot
    images = row_images(sequence.request.images, computed, count)
    return BatchRow(
        seq_id, tokens, samplings, of_prompt, scoring, second_at, adapter=slot, images=images
    )
