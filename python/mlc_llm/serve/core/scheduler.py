"""Who computes how many tokens in the next step.

The scheduler owns the waiting and the running branches, their status and their sequence ids. Both
queues together are always in the order of service: running branches are the front part. A plan
goes down that order, so decoding branches come first, then the one prompt that is under way, then
new ones. When pages lack, what the prefix cache keeps goes first, then the last running branch: it
gives its pages back and is computed again later. A step costs O(running), never O(waiting).
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Sequence

from mlc_llm.runtime.batch import BatchRow, Runner, Sampling
from mlc_llm.serve.core.prefill_budget import Pace
from mlc_llm.serve.core.prefix_cache import Origin, PrefixCache
from mlc_llm.serve.core.request_state import Branch, RequestState, Status
from mlc_llm.serve.core.sampling import sampling_of
from mlc_llm.serve.core.step_plan import Plan, Verdict, drafts_of


class Scheduler:
    """First come first served; nothing that was added is ever passed by a later one."""

    def __init__(
        self,
        runner: Runner,
        *,
        max_num_sequence: int,
        prefill_alone: bool,
        step_budget: float,
        prefix_cache: bool,
        max_recycling: int | None,
    ) -> None:
        limits = runner.limits
        places = min(max_num_sequence, limits.max_num_sequence)
        self._runner = runner
        self._page_size, self._window = limits.page_size, limits.window
        self._max_batch_tokens = limits.max_batch_tokens
        # A running branch must get one token in every step.
        self._max_running = min(places, limits.max_batch_tokens)
        self._prefill_alone = prefill_alone
        self.pace = Pace(step_budget)
        self._waiting: OrderedDict[tuple[int, int], Branch] = OrderedDict()
        self._running: list[Branch] = []
        self._places = places
        self._free_ids = list(range(places))  # a heap: the lowest free id is used first
        self.num_preemptions = 0
        self.cache = PrefixCache(
            self._free,
            max_num_sequence=places,
            max_recycling=max_recycling,
            exact_only=bool(limits.windows),
            enabled=prefix_cache,
        )

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
        """End a branch, wherever it stands.

        Its pages are free afterwards, or kept by the prefix cache if it ended well.
        """
        assert status.is_end and not branch.status.is_end
        if branch.status is Status.RUNNING:
            self._running.remove(branch)
            if status in _ENDED_WELL:
                self._keep(branch)
            else:
                self._release(branch)
        else:
            del self._waiting[branch.key]
        branch.status = status

    def publish(self, branch: Branch) -> None:
        """What the branch has computed is sound: its logits were finite. Others may share it."""
        assert branch.seq_id is not None
        if self.cache.is_enabled:
            done = self.cache.length(branch.seq_id)
            self.cache.extend(branch.seq_id, branch.tokens(done, branch.computed))

    def forget(self, request: RequestState) -> None:
        """The request failed: nothing of it stays in the prefix cache."""
        self.cache.forget(request.arrival)

    def clear(self) -> None:
        """Forget every sequence without a word to the runner (which is reset as well)."""
        self._waiting.clear()
        self._running.clear()
        self.cache.reset()
        self._free_ids = list(range(self._places))

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

    def draft_rooms(self, plan: Plan, most: Sequence[int]) -> list[int]:
        """Drafted tokens that fit behind each row, `most[i]` at most, whatever the others take.

        Nothing is evicted or preempted for a draft, and no other row gives anything up.
        """
        spare = self._available_pages(plan) // len(plan.rows) * self._page_size
        budget = plan.budget // len(plan.rows)
        return [
            max(min(wanted, budget, -(b.computed + b.remaining) % self._page_size + spare), 0)
            for b, wanted in zip(plan.branches, most, strict=True)
        ]

    def add_drafts(
        self, plan: Plan, index: int, drafts: Sequence[int], samplings: Sequence[Sampling]
    ) -> None:
        """Make a row check guesses, as many as `draft_rooms` allows. samplings: the row's own, and
        one behind each guess."""
        row, branch = plan.rows[index], plan.branches[index]
        assert len(samplings) == len(drafts) + 1 and branch.is_decoding
        end = branch.computed + len(row.token_ids)
        plan.reserved_pages += self._new_pages(end, len(drafts))
        plan.budget -= len(drafts)
        assert plan.budget >= 0 and self._available_pages(plan) >= 0, "no room for drafts"
        plan.rows[index] = BatchRow(row.seq_id, [*row.token_ids, *drafts], samplings)

    def settle(self, plan: Plan, branch: Branch, row: BatchRow, known_before: int) -> Verdict:
        """The samples behind a row with drafts were taken in: roll back what did not come true.

        Called once whatever the samples were.
        """
        drafts, said = drafts_of(row), branch.tokens(known_before, branch.known)
        differing = (i for i, (a, b) in enumerate(zip(drafts, said, strict=False)) if a != b)
        accepted = next(differing, min(len(drafts), len(said)))
        in_pages = branch.computed + len(drafts)
        kept = min(accepted, branch.remaining - 1)
        plan.account(branch, kept)
        assert branch.seq_id is not None
        self._runner.rollback_sequence(branch.seq_id, in_pages - branch.computed)
        is_rejected = accepted < min(len(drafts), len(said))
        return Verdict(branch, len(drafts), accepted, kept, is_rejected)

    def check_integrity(self) -> None:
        """Raise AssertionError unless queues, sequence ids and counts agree with each other."""
        keys = [branch.key for branch in self._running] + list(self._waiting)
        assert keys == sorted(set(keys)), "queues are not in the order of service"
        assert all(branch.status is Status.RUNNING for branch in self._running)
        assert all(branch.status is Status.WAITING for branch in self._waiting.values())
        used = [branch.seq_id for branch in self._running if branch.seq_id is not None]
        used += [*self.cache.recycling, *self.cache.pinned]
        assert sorted([*used, *self._free_ids]) == list(range(self._places))
        assert len(used) == self.cache.num_sequences, "sequences that nobody owns"
        self.cache.check_integrity()
        assert all(branch.remaining >= 1 for branch in self._running)
        assert all(b.computed == 0 and b.seq_id is None for b in self._waiting.values())
        self._runner.check_integrity()

    def _plan_prefill(self, plan: Plan) -> None:
        """Only prompts: the one under way, then new ones."""
        if self._running and self._running[-1].is_prefilling:
            self._extend(plan, self._running[-1])
        self._plan_waiting(plan)

    def _plan_running(self, plan: Plan) -> None:
        """Who lacks one token comes first: a prompt, or text that a grammar forced, can wait.

        So a preemption, which only those cause, never takes a branch that has its row already.
        """
        longer = []
        for branch in list(self._running):
            if branch.remaining > 1:
                longer.append(branch)
            elif branch.status is Status.RUNNING:
                self._extend(plan, branch)
        for branch in longer:
            if branch.status is Status.RUNNING:
                self._extend(plan, branch)

    def _plan_waiting(self, plan: Plan) -> None:
        while self._waiting and plan.is_open and plan.budget > 0:
            branch = next(iter(self._waiting.values()))
            origin = self._find_origin(plan, branch)
            if origin is None:
                plan.is_open = False
                return
            self._start(branch, origin)
            self._extend(plan, branch)

    def _extend(self, plan: Plan, branch: Branch) -> None:
        """Add a row for what fits of the branch's remaining tokens, if anything does."""
        remaining, is_decoding = branch.remaining, branch.is_decoding
        wanted = min(remaining, plan.budget)
        if plan.decoding and not is_decoding:
            wanted = min(wanted, self._allowance(plan))
        count = self._room(plan, branch, wanted)
        if count < wanted:
            self._make_room(plan, branch, wanted)
            count = self._room(plan, branch, wanted)
        if branch.status is not Status.RUNNING or count <= 0:
            plan.is_open = False
            return
        plan.budget -= count
        if is_decoding:
            plan.decoding += 1
        else:
            plan.prompt_tokens += count
        if count < remaining:
            plan.is_open = False
        plan.reserved_pages += self._new_pages(branch.computed, count)
        plan.branches.append(branch)
        plan.rows.append(_row(branch, count, count == remaining))

    def _allowance(self, plan: Plan) -> int:
        """Tokens that the clock leaves for a prompt beside the rows that decode."""
        return self.pace.allowance(self._max_batch_tokens) - plan.prompt_tokens

    def _make_room(self, plan: Plan, branch: Branch, wanted: int) -> None:
        """Evict until so many tokens of the branch fit.

        A decoding branch must get its one token: for that, preempt from the end until it fits or
        the branch is gone itself.
        """
        while self._room(plan, branch, wanted) < wanted and self._evict():
            pass
        must = branch.remaining == wanted == 1
        while must and branch.status is Status.RUNNING and not self._room(plan, branch, wanted):
            if not self._evict():
                self._preempt(plan)

    def _evict(self) -> bool:
        """Take a sequence from the cache; a pinned one only where nothing could go on else."""
        return self.cache.evict(even_pinned=len(self._running) == 1)

    def _room(self, plan: Plan, branch: Branch, wanted: int) -> int:
        """Tokens that fit behind the branch's last one, `wanted` at most."""
        slack = -branch.computed % self._page_size
        if wanted <= slack:
            return wanted
        return min(wanted, slack + self._available_pages(plan) * self._page_size)

    def _available_pages(self, plan: Plan) -> int:
        return self._runner.free_pages - plan.reserved_pages

    def _new_pages(self, length: int, more: int) -> int:
        """Pages that a sequence takes to grow by so many tokens."""
        return max(self._pages(more - -length % self._page_size), 0)

    def _pages(self, tokens: int) -> int:
        return -(-tokens // self._page_size)

    def _find_origin(self, plan: Plan, branch: Branch) -> Origin | None:
        """How a waiting branch begins; None while it has to wait."""
        if len(self._running) == self._max_running:
            return None
        donor = _donor(branch)
        if donor is not None and self._has_all(donor, _shared(branch)):
            if donor.computed < _shared(branch):
                return None  # the prompt that it shares is still under way
            origin = Origin("fork", _shared(branch), donor.seq_id)
            return origin if self._make_start(plan, branch, origin) else None
        known = branch.tokens(0, branch.known)
        for may_fork, even_pinned in _ATTEMPTS[: 2 if self._running else 3]:
            origin = self.cache.lookup(known, may_fork=may_fork)
            if self._make_start(plan, branch, origin, even_pinned):
                plan.lookups.append((branch, origin))
                return origin
        return None

    def _make_start(
        self, plan: Plan, branch: Branch, origin: Origin, even_pinned: bool = False
    ) -> bool:
        """Evict until the branch has a sequence and pages for all it knows, or nothing is left.

        One page a running branch is left over, so that it is not preempted at once. A branch that
        is alone can always start: what can never fit was refused when it was added.
        """
        needed = self._pages(branch.known) - origin.length // self._page_size
        if self._window is not None:
            needed = min(needed, self._window.most_pages(self._page_size))
        needed += len(self._running)
        while not self._has_place(origin) or needed > self._available_pages(plan):
            if not self.cache.evict(origin.source, even_pinned=even_pinned):
                return even_pinned
        return True

    def _has_all(self, donor: Branch, length: int) -> bool:
        """Whether a branch that begins with so many tokens would see nothing that is gone."""
        size = self._page_size
        return all(
            window.unseen(donor.computed - 1, size).stop <= window.unseen(length, size).stop
            for window in self._runner.limits.windows
        )

    def _has_place(self, origin: Origin) -> bool:
        return bool(self._free_ids) or origin.kind == "reuse"

    def _start(self, branch: Branch, origin: Origin) -> None:
        if origin.kind == "reuse" and origin.source is not None:
            seq_id = origin.source
            self._runner.rollback_sequence(seq_id, origin.rollback)
        else:
            seq_id = heapq.heappop(self._free_ids)
            if origin.source is None:
                self._runner.add_sequence(seq_id)
            else:
                self._runner.fork_sequence(origin.source, seq_id, origin.length)
        self.cache.begin(seq_id, origin)
        branch.begin(seq_id, origin.length)
        del self._waiting[branch.key]
        self._running.append(branch)

    def _keep(self, branch: Branch) -> None:
        """Leave a branch's sequence to the prefix cache: its prompt alone where that is pinned."""
        assert branch.seq_id is not None
        self.publish(branch)
        request = branch.request
        is_pin = request.config.pins_prompt and branch.index == 0
        pinned_length = len(request.prompt) if is_pin else 0
        surplus = self.cache.finish(branch.seq_id, request.arrival, pinned_length=pinned_length)
        if surplus:
            self._runner.rollback_sequence(branch.seq_id, surplus)
        branch.seq_id, branch.computed = None, 0

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
        self.cache.remove(branch.seq_id)
        branch.seq_id, branch.computed = None, 0

    def _free(self, seq_id: int) -> None:
        """The prefix cache has let go of a sequence."""
        self._runner.remove_sequence(seq_id)
        heapq.heappush(self._free_ids, seq_id)


_ENDED_WELL = (Status.STOPPED, Status.LENGTH)

_ATTEMPTS = ((True, False), (False, False), (False, True))
"""Ways to begin, best first: (may fork, even at the cost of pinned prompts)."""


def _row(branch: Branch, count: int, is_whole: bool) -> BatchRow:
    assert branch.seq_id is not None
    samplings = [sampling_of(branch)] if is_whole else []
    of_prompt = min(max(len(branch.request.prompt) - branch.computed, 0), count)
    return BatchRow(branch.seq_id, branch.next_tokens(count), samplings, of_prompt)


def _shared(branch: Branch) -> int:
    """Tokens that a branch can take over from another of its request: at least one is left."""
    return min(len(branch.request.prompt), branch.known - 1)


def _donor(branch: Branch) -> Branch | None:
    """The running branch of the same request that has computed most, if there is any to share."""
    if _shared(branch) == 0:
        return None
    running = (b for b in branch.request.branches if b.status is Status.RUNNING)
    return max(running, key=lambda b: b.computed, default=None)
