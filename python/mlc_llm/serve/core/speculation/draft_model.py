"""A smaller model as drafter. It has a runner of its own, with a follower of each sequence."""

from __future__ import annotations

import time
from collections import abc
from collections.abc import Callable
from dataclasses import dataclass, field

from mlc_llm.runtime.batch import Batch, BatchRow, Runner
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_lengths import StepTimes
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.speculation.drafter import Offer

CATCH_UP = 128
"""Most tokens that one step reads of texts that the draft model does not know yet. The streams wait
for it."""
SHORT_LAG, LAG_PER_TOKEN = 32, 16
"""The draft model reads a sequence only if it lacks at most SHORT_LAG of its tokens, or at most
LAG_PER_TOKEN for each generated one. To read a long prompt twice does not pay for a short answer.
"""


@dataclass
class _Follower:
    """The draft model's copy of one sequence."""

    seq_id: int
    known: int = 0
    """Tokens of the sequence that its pages hold."""
    drafted: list[int] = field(default_factory=list)
    """Draft tokens in its pages behind those. The sequence may have taken them by now, or not."""


class DraftModel:
    """Drafts with a second model: one batch of all sequences for each position of the drafts.

    It samples with the settings and the random numbers of the model that verifies. So where the two
    models agree on the probabilities, they agree on the token, at any temperature. (The likeliest
    token would be right only as often as it is likely.)
    """

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.perf_counter) -> None:
        """runner: of a model with the same vocabulary; nothing else may use it."""
        self._runner = runner
        self._clock = clock
        self._times = StepTimes()
        self._followers: dict[tuple[int, int], _Follower] = {}
        self._free_ids = list(range(runner.limits.max_num_sequence))

    def offers(self, sequences: abc.Sequence[Sequence], most: abc.Sequence[int]) -> list[Offer]:
        free, slots = self._runner.free_pages, len(self._free_ids)
        share, offers = free // max(len(self._followers), 1), []
        for sequence, wanted in zip(sequences, most, strict=True):
            is_new = sequence.key not in self._followers
            pages = self._pages_needed(sequence, wanted) if wanted else None
            fits = pages is not None and pages <= min(share, free) and slots >= is_new
            offers.append(Offer(wanted if fits else 0))
            if fits and pages is not None:
                free, slots = free - pages, slots - is_new
        return offers

    def cost(self, rows: int, depth: int) -> float:
        return self._times.estimate(rows) * depth

    def draft(self, drafts: abc.Sequence[DraftSequence], lengths: abc.Sequence[int]) -> None:
        drafting = self._catch_up(drafts)
        wanted = {draft.sequence.key: n for draft, n in zip(drafts, lengths, strict=True)}
        while drafting:
            drafting = [d for d in drafting if len(d.token_ids) < wanted[d.sequence.key]]
            rows = [self._draft_row(draft) for draft in drafting]
            drafting = self._run(drafting, rows)

    def forget(self, sequence: Sequence) -> None:
        follower = self._followers.pop(sequence.key, None)
        if follower is not None:
            self._runner.remove_sequence(follower.seq_id)
            self._free_ids.append(follower.seq_id)

    def reset(self) -> None:
        self._followers.clear()
        self._runner.reset()
        self._free_ids = list(range(self._runner.limits.max_num_sequence))

    def check_integrity(self) -> None:
        used = [follower.seq_id for follower in self._followers.values()]
        every = range(self._runner.limits.max_num_sequence)
        assert sorted([*used, *self._free_ids]) == list(every), "draft sequences"
        self._runner.check_integrity()
        if not used:
            assert self._runner.free_pages == self._runner.limits.num_pages

    def _pages_needed(self, sequence: Sequence, wanted: int) -> int | None:
        """Pages that a draft of `wanted` tokens takes; None: it would not pay or not fit."""
        follower, limits = self._followers.get(sequence.key), self._runner.limits
        lag = sequence.known - (0 if follower is None else follower.known)
        if lag > max(SHORT_LAG, LAG_PER_TOKEN * len(sequence.generated)):
            return None
        if sequence.known + wanted > limits.context_window:
            return None
        held = 0 if follower is None else _pages(follower, limits.page_size)
        return -(-(sequence.known + wanted) // limits.page_size) - held

    def _catch_up(self, drafts: abc.Sequence[DraftSequence]) -> list[DraftSequence]:
        """Read the tokens that the followers lack.

        Returns the drafts whose follower lacks none now; each has its first token. Followers that
        lack least come first, so that a long text does not delay the others' drafts.
        """
        followers = {d.sequence.key: self._follower(d.sequence) for d in drafts}
        left = min(CATCH_UP + len(drafts), self._runner.limits.max_batch_tokens)
        batch, rows = [], []
        for draft in sorted(
            drafts, key=lambda d: d.sequence.known - followers[d.sequence.key].known
        ):
            sequence, follower = draft.sequence, followers[draft.sequence.key]
            end = min(sequence.known, follower.known + left)
            if end == follower.known:
                break
            tokens = sequence.tokens(follower.known, end)
            samplings = [draft.quiet] if end == sequence.known else []
            batch.append(draft)
            rows.append(BatchRow(follower.seq_id, tokens, samplings))
            left -= len(tokens)
        drafting = self._run(batch, rows)
        for draft, row in zip(batch, rows, strict=True):
            followers[draft.sequence.key].known += len(row.token_ids)
        return drafting

    def _follower(self, sequence: Sequence) -> _Follower:
        """The sequence's follower, without the draft tokens that were not accepted."""
        follower = self._followers.get(sequence.key)
        if follower is None:
            follower = _Follower(self._free_ids.pop())
            self._runner.add_sequence(follower.seq_id)
            self._followers[sequence.key] = follower
        said = sequence.tokens(follower.known, sequence.known - 1)
        accepted = 0
        for expected, token_id in zip(follower.drafted, said, strict=False):
            if expected != token_id:
                break
            accepted += 1
        self._runner.rollback_sequence(follower.seq_id, len(follower.drafted) - accepted)
        follower.known += accepted
        follower.drafted = []
        return follower

    def _draft_row(self, draft: DraftSequence) -> BatchRow:
        """The row that samples the token behind the last draft token."""
        follower, last = self._followers[draft.sequence.key], draft.token_ids[-1]
        follower.drafted.append(last)
        return BatchRow(follower.seq_id, [last], [draft.quiet])

    def _run(
        self, drafts: abc.Sequence[DraftSequence], rows: abc.Sequence[BatchRow]
    ) -> list[DraftSequence]:
        """Run a batch; returns the drafts that have one more token for it."""
        if not rows:
            return []
        start = self._clock()
        samples = self._runner.run(Batch(rows)).samples
        self._times.learn(sum(len(row.token_ids) for row in rows), self._clock() - start)
        return [
            draft
            for draft, several in zip(drafts, samples, strict=True)
            if several and several[0].error is None and draft.push(several[0].token_id)
        ]


def _pages(follower: _Follower, page_size: int) -> int:
    return -(-(follower.known + len(follower.drafted)) // page_size)
