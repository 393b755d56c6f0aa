"""A smaller model as drafter, with a runner and sequences of its own that follow the branches."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from mlc_llm.runtime.batch import Batch, BatchRow, Runner, Sampling
from mlc_llm.serve.core.request_state import Branch
from mlc_llm.serve.core.speculation.draft_lengths import StepTimes
from mlc_llm.serve.core.speculation.draft_sequence import Outlook
from mlc_llm.serve.core.speculation.drafter import Offer

CATCH_UP = 128
"""Most tokens that one step reads of texts the draft model does not know yet: the streams wait for
it."""
SHORT_LAG, LAG_PER_TOKEN = 32, 16
"""A branch is followed once its lag is at most the first, or the second times what it has
generated: reading a long prompt twice does not pay for a short answer."""


@dataclass
class _Follower:
    """The draft model's sequence of one branch."""

    seq_id: int
    known: int = 0
    """Tokens of the branch that it holds."""
    guesses: list[int] = field(default_factory=list)
    """Tokens behind those, which the branch may have taken or not by now."""


class DraftModel:
    """Drafts with a second model, all branches in one batch for each place of the drafts.

    It draws with the same sampling and the same random numbers as the model that checks, so where
    the two agree on the probabilities they agree on the token, at any temperature. (The likeliest
    token would be right only as often as it is likely.)
    """

    def __init__(self, runner: Runner, clock: Callable[[], float] = time.perf_counter) -> None:
        """runner: of a model with the same vocabulary; nobody else may use it."""
        self._runner = runner
        self._clock = clock
        self._times = StepTimes()
        self._followers: dict[tuple[int, int], _Follower] = {}
        self._free_ids = list(range(runner.limits.max_num_sequence))

    def offers(self, branches: Sequence[Branch], most: Sequence[int]) -> list[Offer]:
        return [Offer(self._most(*one)) for one in zip(branches, most, strict=True)]

    def cost(self, rows: int, depth: int) -> float:
        return self._times.estimate(rows) * depth

    def draft(self, outlooks: Sequence[Outlook], lengths: Sequence[int]) -> None:
        drafting = self._catch_up(outlooks)
        wanted = {outlook.branch.key: n for outlook, n in zip(outlooks, lengths, strict=True)}
        while drafting:
            drafting = [o for o in drafting if len(o.drafts) < wanted[o.branch.key]]
            rows = [self._guess_row(outlook) for outlook in drafting]
            drafting = self._run(drafting, rows)

    def forget(self, branch: Branch) -> None:
        follower = self._followers.pop(branch.key, None)
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

    def _most(self, branch: Branch, wanted: int) -> int:
        """Tokens that could be drafted for a branch, of `wanted`."""
        follower = self._followers.get(branch.key)
        if follower is None and not self._free_ids:
            return 0
        lag = branch.known - (0 if follower is None else follower.known)
        if lag > max(SHORT_LAG, LAG_PER_TOKEN * len(branch.generated)):
            return 0
        limits = self._runner.limits
        pages = -(-(branch.known + wanted) // limits.page_size)
        held = 0 if follower is None else _pages(follower, limits.page_size)
        is_held = pages - held <= self._runner.free_pages // max(len(self._followers), 1)
        fits = branch.known + wanted <= limits.context_window
        return wanted if is_held and fits else 0

    def _catch_up(self, outlooks: Sequence[Outlook]) -> list[Outlook]:
        """Read what the branches have said since; those that are up to date then have one draft.

        The ones that lack least come first, so that a long text delays nobody's drafts.
        """
        followers = {o.branch.key: self._follower(o.branch) for o in outlooks}
        left = min(CATCH_UP + len(outlooks), self._runner.limits.max_batch_tokens)
        batch, rows = [], []
        for outlook in sorted(
            outlooks, key=lambda o: o.branch.known - followers[o.branch.key].known
        ):
            branch, follower = outlook.branch, followers[outlook.branch.key]
            end = min(branch.known, follower.known + left)
            if end == follower.known:
                break
            tokens = branch.tokens(follower.known, end)
            samplings = [_quiet(outlook)] if end == branch.known else []
            batch.append(outlook)
            rows.append(BatchRow(follower.seq_id, tokens, samplings))
            left -= len(tokens)
        drafting = self._run(batch, rows)
        for outlook, row in zip(batch, rows, strict=True):
            followers[outlook.branch.key].known += len(row.token_ids)
        return drafting

    def _follower(self, branch: Branch) -> _Follower:
        """The branch's sequence, without the guesses that did not come true."""
        follower = self._followers.get(branch.key)
        if follower is None:
            follower = _Follower(self._free_ids.pop())
            self._runner.add_sequence(follower.seq_id)
            self._followers[branch.key] = follower
        said = branch.tokens(follower.known, branch.known - 1)
        right = 0
        for guess, token_id in zip(follower.guesses, said, strict=False):
            if guess != token_id:
                break
            right += 1
        self._runner.rollback_sequence(follower.seq_id, len(follower.guesses) - right)
        follower.known += right
        follower.guesses = []
        return follower

    def _guess_row(self, outlook: Outlook) -> BatchRow:
        follower = self._followers[outlook.branch.key]
        guess = outlook.drafts[-1]
        follower.guesses.append(guess)
        return BatchRow(follower.seq_id, [guess], [_quiet(outlook)])

    def _run(self, outlooks: Sequence[Outlook], rows: Sequence[BatchRow]) -> list[Outlook]:
        """Run a batch; returns those that have one more draft for it."""
        if not rows:
            return []
        start = self._clock()
        samples = self._runner.run(Batch(rows)).samples
        self._times.learn(sum(len(row.token_ids) for row in rows), self._clock() - start)
        return [
            outlook
            for outlook, several in zip(outlooks, samples, strict=True)
            if several and several[0].error is None and outlook.push(several[0].token_id)
        ]


def _quiet(outlook: Outlook) -> Sampling:
    """The next sampling, without the log-probabilities that nobody reads."""
    return replace(outlook.samplings[-1], top_logprobs=-1)


def _pages(follower: _Follower, page_size: int) -> int:
    return -(-(follower.known + len(follower.guesses)) // page_size)
