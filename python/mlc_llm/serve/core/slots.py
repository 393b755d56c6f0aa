"""The runner's slots: how a sequence gets one, and what becomes of it when the sequence ends."""

from __future__ import annotations

import heapq
from collections import abc

from mlc_llm.errors import TransferRefused
from mlc_llm.runtime.batch import Runner
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.images import before_image
from mlc_llm.serve.core.page_budget import PageBudget
from mlc_llm.serve.core.prefix_cache import PrefixCache, PrefixMatch
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.step_plan import StepPlan


class Slots:
    """Every slot is free, or has a running sequence, or an ended one that the cache keeps."""

    def __init__(self, runner: Runner, config: EngineConfig, pages: PageBudget) -> None:
        limits = runner.limits
        wanted = config.max_num_sequence or limits.max_num_sequence
        self.num_slots = min(wanted, limits.max_num_sequence)
        self._runner = runner
        self._pages = pages
        self._keeps_states = limits.has_states
        self.in_flight: abc.Set[Sequence] = frozenset()
        """Those of which the runner has a token more than they know, in a step under way."""
        self._free_ids = list(range(self.num_slots))  # a heap: the lowest free id is used first
        self.cache = PrefixCache(
            self._free,
            max_num_sequence=self.num_slots,
            max_recycling=config.prefix_cache_max_num_recycling_seqs,
            exact_only=limits.only_whole,
            enabled=config.prefix_cache_mode == "radix" and not limits.is_encoder,
            cuts=runner.kept_states if limits.keeps_states else None,
        )

    def find_prefix(
        self, plan: StepPlan, sequence: Sequence, num_running: int
    ) -> PrefixMatch | None:
        """How a waiting sequence begins; None while it has to wait.

        Makes room for it. One page for each running sequence is left over, so that none of them is
        preempted soon. A sequence can always start while no other one runs: a prompt that can
        never fit was refused when it was added.
        """
        if sequence.scores is not None:  # its prompt is computed anew
            prefix = PrefixMatch()
            is_free = self._make_room(sequence, prefix, num_running, even_pinned=not num_running)
            plan.lookups += ((sequence, None),) if is_free else ()
            return prefix if is_free else None
        donor = _donor(sequence)
        if donor is not None and self._can_give(donor, _shared(sequence)):
            if donor.progress.computed < _shared(sequence):
                return None  # the donor's prompt is not computed yet
            prefix = PrefixMatch("fork", _shared(sequence), donor.progress.seq_id)
            return prefix if self._make_room(sequence, prefix, num_running) else None
        known, images = sequence.tokens(0, sequence.known), sequence.request.images
        for may_fork, even_pinned in _ATTEMPTS[: 2 if num_running else 3]:
            prefix = self.cache.lookup(
                known, may_fork=may_fork, salt=sequence.request.cache_salt, images=images
            )
            if self._make_room(sequence, prefix, num_running, even_pinned=even_pinned):
                plan.lookups += ((sequence, prefix),)
                return prefix
        return None

    def start(self, sequence: Sequence, prefix: PrefixMatch) -> None:
        """Give a sequence its slot, as `find_prefix` has decided."""
        if prefix.kind == "reuse" and prefix.source is not None:
            seq_id = prefix.source
            self._runner.rollback_sequence(seq_id, prefix.rollback)
        else:
            seq_id = heapq.heappop(self._free_ids)
            if prefix.source is None:
                self._runner.add_sequence(seq_id)
            else:
                self._runner.fork_sequence(prefix.source, seq_id, prefix.length)
        self.cache.begin(seq_id, prefix, salt=sequence.request.cache_salt)
        parted = 0 if prefix.divergence is None else prefix.divergence.position
        sequence.progress.begin(seq_id, prefix.length, sequence.known, parted)

    def export(self, tokens: abc.Sequence[int], salt: str) -> Transfer:
        """What the cache has of these tokens, for another engine. Raises `TransferRefused` if it
        has not all of them."""
        self._check_portable()
        found = self.cache.lookup([*tokens, 0], salt=salt)
        if found.source is None or found.length < len(tokens):
            raise TransferRefused("the prefix cache does not have all of these tokens")
        return self._runner.export_pages(found.source, len(tokens))

    def take_in(self, tokens: abc.Sequence[int], transfer: Transfer, salt: str, spare: int) -> None:
        """Keep what another engine has computed, as though a sequence had ended here. spare: pages
        to leave free. Raises `TransferRefused`, `RequestError`."""
        self._check_portable()
        if any(begin != end for begin, end in transfer.freed):
            raise TransferRefused("pages are missing")
        if self.cache.lookup([*tokens, 0], salt=salt).length == len(tokens):
            return  # it is here already
        needed = -(-len(tokens) // self._runner.limits.page_size) + spare
        while not self._free_ids or needed > self._runner.free_pages:
            if not self.cache.evict():
                raise TransferRefused("there is no room for pages from elsewhere")
        seq_id = heapq.heappop(self._free_ids)
        try:
            self._runner.import_pages(seq_id, transfer, len(tokens))
        except BaseException:
            heapq.heappush(self._free_ids, seq_id)
            raise
        self.cache.begin(seq_id, PrefixMatch(), salt=salt)
        self.cache.extend(seq_id, tokens)
        self.cache.finish(seq_id)

    def _check_portable(self) -> None:
        if self._runner.limits.only_whole or not self.cache.is_enabled:
            raise TransferRefused("models with windows or states, and engines without a prefix "
                                  "cache, take over no prompts of other engines")  # fmt: skip

    def states_to_keep(self, sequence: Sequence, count: int) -> tuple[int, ...]:
        """Behind how many tokens the next `count` tokens leave a state that others may go on from:
        where the prompt parts from a cached one, as the next prompt may, and before the last token
        of the prompt, for its other continuations and for the same prompt again."""
        if not self._keeps_states:
            return ()
        start, last = sequence.progress.computed, len(sequence.request.prompt) - 1
        places = {min(sequence.progress.parted, last), last}
        return tuple(sorted(at for at in places if max(start, 1) <= at < start + count))

    def cache_computed(self, sequence: Sequence) -> None:
        """Others may take over what the sequence has computed: its logits were finite."""
        progress = sequence.progress
        assert progress.seq_id is not None
        if self.cache.is_enabled:
            done = self.cache.length(progress.seq_id)
            self.cache.extend(progress.seq_id, sequence.tokens(done, progress.computed))

    def keep(self, sequence: Sequence) -> None:
        """Leave the slot to the prefix cache: with all tokens, or with a pinned prompt alone."""
        request, seq_id = sequence.request, sequence.progress.seq_id
        assert seq_id is not None
        self.cache_computed(sequence)
        is_pin = request.config.pins_prompt and sequence.index == 0
        pinned_length = len(request.prompt) if is_pin else 0
        if sequence in self.in_flight:
            self._runner.rollback_sequence(seq_id, 1)
        surplus = self.cache.finish(seq_id, request.arrival, pinned_length=pinned_length)
        if surplus:
            self._runner.rollback_sequence(seq_id, surplus)
        sequence.progress.leave_slot()

    def release(self, sequence: Sequence) -> None:
        """Free the slot and its pages."""
        assert sequence.progress.seq_id is not None
        self.cache.remove(sequence.progress.seq_id)
        sequence.progress.leave_slot()

    def forget(self, request: RequestState) -> None:
        """The request failed: nothing of it stays in the prefix cache."""
        self.cache.forget(request.arrival)

    def clear(self) -> None:
        """All slots are free, and the runner hears nothing: it is reset as well."""
        self.cache.reset()
        self._free_ids = list(range(self.num_slots))

    def check_integrity(self, running: abc.Iterable[Sequence]) -> None:
        """AssertionError unless each slot has one owner."""
        used = [one.progress.seq_id for one in running if one.progress.seq_id is not None]
        used += [*self.cache.recycling, *self.cache.pinned]
        assert sorted([*used, *self._free_ids]) == list(range(self.num_slots))
        assert len(used) == self.cache.num_sequences, "slots without an owner"
        self.cache.check_integrity()

    def _make_room(
        self,
        sequence: Sequence,
        prefix: PrefixMatch,
        num_running: int,
        *,
        even_pinned: bool = False,
    ) -> bool:
        """Evict until there is a slot, and pages for all that the sequence knows.

        even_pinned: evict pinned sequences too; then the result is always True.
        """
        needed = self._pages.pages_to_start(sequence.known, prefix.length) + num_running
        while not self._has_slot(prefix) or needed > self._pages.available:
            if not self.cache.evict(prefix.source, even_pinned=even_pinned):
                return even_pinned
        return True

    def _has_slot(self, prefix: PrefixMatch) -> bool:
        return bool(self._free_ids) or prefix.kind == "reuse"

    def _can_give(self, donor: Sequence, shared: int) -> bool:
        """A running sequence has, or will have, what a fork with its first tokens needs."""
        computed, seq_id = donor.progress.computed, donor.progress.seq_id
        assert seq_id is not None
        if not self._keeps_states:
            return self._pages.can_fork(computed, shared)
        kept = {*self._runner.kept_states(seq_id)}
        if computed <= shared == len(donor.request.prompt) - 1:
            kept.add(shared)  # its next tokens leave it
        return self._pages.can_fork(computed, shared, kept)

    def _free(self, seq_id: int) -> None:
        """The prefix cache has removed a sequence."""
        self._runner.remove_sequence(seq_id)
        heapq.heappush(self._free_ids, seq_id)


_ATTEMPTS = ((True, False), (False, False), (False, True))
"""Ways to begin, the best one first: (may fork, may evict pinned prompts)."""


def _shared(sequence: Sequence) -> int:
    """Tokens that a sequence can take over from another one of its request: all but one, and no
    part of an image."""
    shared = min(len(sequence.request.prompt), sequence.known - 1)
    return before_image(sequence.request.images, shared)


def _donor(sequence: Sequence) -> Sequence | None:
    """The running sequence of the same request that has computed most; None if none can give."""
    if _shared(sequence) == 0:
        return None
    others = sequence.request.sequences
    running = (one for one in others if one.progress.status is Status.RUNNING)
    return max(running, key=lambda one: one.progress.computed, default=None)
