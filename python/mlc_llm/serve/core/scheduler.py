"""Who computes how many tokens in the next step.

The scheduler owns the waiting and the running branches, their status and their sequence ids. Both
queues together are always in the order of service: running branches are the front part. A plan
goes down that order, so decoding branches come first, then the one prompt that is under way, then
new ones; when pages lack, the last running branch gives its pages back and is computed again later.
A step costs O(running), never O(waiting).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from mlc_llm.runtime.batch import BatchRow, Runner
from mlc_llm.serve.core.request_state import Branch, RequestState, Status
from mlc_llm.serve.core.sampling import sampling_of


@dataclass
class Plan:
    """One step of work: `rows[i]` belongs to `branches[i]`."""

    budget: int
    """Tokens that may still be added."""
    rows: list[BatchRow] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    reserved_pages: int = 0
    """Free pages that the rows so far will take."""
    is_open: bool = True
    """Whether a new branch may still start: False once something did not fit whole."""
    preempted: list[Branch] = field(default_factory=list)

    def split(self) -> Iterator[Plan]:
        """The same rows, one a plan."""
        for row, branch in zip(self.rows, self.branches, strict=True):
            yield Plan(0, [row], [branch])


class Scheduler:
    """First come first served; nothing that was added is ever passed by a later one."""

    def __init__(self, runner: Runner, *, max_num_sequence: int, prefill_alone: bool) -> None:
        limits = runner.limits
        self._runner = runner
        self._page_size = limits.page_size
        self._max_batch_tokens = limits.max_batch_tokens
        # A running branch must get one token in every step.
        self._max_running = min(max_num_sequence, limits.max_num_sequence, limits.max_batch_tokens)
        self._prefill_alone = prefill_alone
        self._waiting: OrderedDict[tuple[int, int], Branch] = OrderedDict()
        self._running: list[Branch] = []
        self._free_ids = list(range(self._max_running))  # a heap: the lowest free id is used first
        self.num_preemptions = 0

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._waiting)

    def add(self, request: RequestState) -> None:
        """Queue all branches of a request behind everything else."""
        for branch in request.branches:
            self._waiting[branch.key] = branch

    def finish(self, branch: Branch, status: Status) -> None:
        """End a branch, wherever it stands; its pages are free afterwards."""
        assert status.is_end and not branch.status.is_end
        if branch.status is Status.RUNNING:
            self._running.remove(branch)
            self._release(branch)
        else:
            del self._waiting[branch.key]
        branch.status = status

    def clear(self) -> None:
        """Forget every branch without a word to the runner (which is reset as well)."""
        self._waiting.clear()
        self._running.clear()
        self._free_ids = list(range(self._max_running))

    def schedule(self) -> Plan:
        """Plan a step. Empty only when nothing is running or waiting."""
        plan = Plan(self._max_batch_tokens)
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
        """Raise AssertionError unless queues, sequence ids and counts agree with each other."""
        keys = [branch.key for branch in self._running] + list(self._waiting)
        assert keys == sorted(set(keys)), "queues are not in the order of service"
        assert all(branch.status is Status.RUNNING for branch in self._running)
        assert all(branch.status is Status.WAITING for branch in self._waiting.values())
        used = [branch.seq_id for branch in self._running if branch.seq_id is not None]
        assert sorted([*used, *self._free_ids]) == list(range(self._max_running))
        assert all(branch.remaining >= 1 for branch in self._running)
        assert all(b.computed == 0 and b.seq_id is None for b in self._waiting.values())
        self._runner.check_integrity()

    def _plan_prefill(self, plan: Plan) -> None:
        """Only prompts: the one under way, then new ones."""
        if self._running and self._running[-1].remaining > 1:
            self._extend(plan, self._running[-1])
        self._plan_waiting(plan)

    def _plan_running(self, plan: Plan) -> None:
        at = 0
        while at < len(self._running):  # preemption shortens the list from its end
            self._extend(plan, self._running[at])
            at += 1

    def _plan_waiting(self, plan: Plan) -> None:
        while self._waiting and plan.is_open and plan.budget > 0:
            branch = next(iter(self._waiting.values()))
            donor = _donor(branch)
            if not self._may_start(plan, branch, donor):
                plan.is_open = False
                return
            self._start(branch, donor)
            self._extend(plan, branch)

    def _extend(self, plan: Plan, branch: Branch) -> None:
        """Add a row for what fits of the branch's remaining tokens, if anything does."""
        if branch.remaining == 1 and plan.budget > 0:
            self._make_room(plan, branch)
        count = min(branch.remaining, plan.budget, self._room(plan, branch))
        if branch.status is not Status.RUNNING or count <= 0:
            plan.is_open = False
            return
        is_whole = count == branch.remaining
        plan.is_open &= is_whole
        plan.budget -= count
        plan.reserved_pages += self._pages(branch.computed + count) - self._pages(branch.computed)
        plan.branches.append(branch)
        plan.rows.append(_row(branch, count, is_whole))

    def _make_room(self, plan: Plan, branch: Branch) -> None:
        """Preempt from the end until one more token of the branch fits, or it is gone itself."""
        while branch.status is Status.RUNNING and self._room(plan, branch) == 0:
            self._preempt(plan)

    def _room(self, plan: Plan, branch: Branch) -> int:
        """Tokens that fit behind the branch's last one."""
        slack = -branch.computed % self._page_size
        return slack + self._available_pages(plan) * self._page_size

    def _available_pages(self, plan: Plan) -> int:
        return self._runner.free_pages - plan.reserved_pages

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _may_start(self, plan: Plan, branch: Branch, donor: Branch | None) -> bool:
        """Whether the branch has a free sequence and pages for all it knows.

        One page a running branch is left over, so that it is not preempted at once. A branch that
        is alone always starts: what can never fit was refused when it was added.
        """
        if len(self._running) >= self._max_running:
            return False
        if donor is not None and donor.computed < _shared(branch):
            return False  # the prompt that it shares is still under way
        if not self._running:
            return True
        shared_pages = 0 if donor is None else _shared(branch) // self._page_size
        needed = self._pages(branch.known) - shared_pages + len(self._running)
        return needed <= self._available_pages(plan)

    def _start(self, branch: Branch, donor: Branch | None) -> None:
        seq_id = self._free_ids[0]
        if donor is None or donor.seq_id is None:
            self._runner.add_sequence(seq_id)
        else:
            self._runner.fork_sequence(donor.seq_id, seq_id, _shared(branch))
            branch.computed = _shared(branch)
        heapq.heappop(self._free_ids)
        branch.seq_id = seq_id
        del self._waiting[branch.key]
        branch.status = Status.RUNNING
        self._running.append(branch)

    def _preempt(self, plan: Plan) -> None:
        """Send the last running branch back to the front of the queue.

        All it knows is computed again later; nothing is sampled twice.
        """
        branch = self._running.pop()
        self._release(branch)
        branch.status = Status.WAITING
        self._waiting[branch.key] = branch
        self._waiting.move_to_end(branch.key, last=False)
        self.num_preemptions += 1
        plan.preempted.append(branch)
        plan.is_open = False  # else the pages just won would go straight back

    def _release(self, branch: Branch) -> None:
        assert branch.seq_id is not None
        self._runner.remove_sequence(branch.seq_id)
        heapq.heappush(self._free_ids, branch.seq_id)
        branch.seq_id = None
        branch.computed = 0


def _row(branch: Branch, count: int, is_whole: bool) -> BatchRow:
    assert branch.seq_id is not None
    sampling = sampling_of(branch) if is_whole else None
    return BatchRow(branch.seq_id, branch.next_tokens(count), sampling)


def _shared(branch: Branch) -> int:
    """Tokens that a branch can take over from another of its request: at least one is left."""
    return min(len(branch.request.prompt), branch.known - 1)


def _donor(branch: Branch) -> Branch | None:
    """The running branch of the same request that has computed most, if there is any to share."""
    if _shared(branch) == 0:
        return None
    running = (b for b in branch.request.branches if b.status is Status.RUNNING)
    return max(running, key=lambda b: b.computed, default=None)
