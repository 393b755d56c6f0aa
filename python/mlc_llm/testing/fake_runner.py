"""A `Runner` without a model. It counts pages like a real one, and its tokens depend on the pages.

The next token is a function of the tokens in a sequence's pages and of the row's sampling. So any
error in a page (a wrong fork, a lost chunk, a wrong preemption) changes the text, and a test sees
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import (
    KNOWN,
    AdapterParts,
    Batch,
    BatchOutput,
    BatchRow,
    Sampled,
    Sampling,
    Scoring,
)
from mlc_llm.runtime.decode_rows import ChosenTokens, DecodeRows
from mlc_llm.runtime.limits import RANK_STEP, AdapterLimits, RunnerLimits, Window
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.testing.fake_sampling import fake_logits, log_softmax, sample

HIDDEN = 8
"""Numbers of a hidden vector."""
Fault = Callable[[Batch], None]
"""Called before a batch runs. If it raises, the run fails."""


class FakePages:
    """Pages with reference counts. A page holds tokens instead of keys and values."""

    def __init__(self, num_pages: int, page_size: int) -> None:
        self.page_size = page_size
        self.tokens: list[list[int]] = [[] for _ in range(num_pages)]
        self.references = [0] * num_pages
        self.free = list(range(num_pages))

    def take(self) -> int:
        """An empty page."""
        page = self.free.pop()
        self.references[page] = 1
        self.tokens[page] = []
        return page

    def share(self, page: int) -> None:
        self.references[page] += 1

    def drop(self, page: int) -> None:
        self.references[page] -= 1
        if self.references[page] == 0:
            self.free.append(page)


@dataclass
class FakeSequence:
    """The pages of one sequence. All are full, except the last."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    freed: set[int] = field(default_factory=set)
    """Indices in `pages` of the pages that were given back."""

    @property
    def owned(self) -> list[int]:
        return [page for i, page in enumerate(self.pages) if i not in self.freed]


@dataclass(eq=False)
class FakeStep:
    """A step that was started; whoever may not know its samples yet has to collect it."""

    batch: Batch
    samples: list[list[Sampled]]


class FakeRunner:
    """Implements `mlc_llm.runtime.batch.Runner`. Keeps every batch that it ran in `batches`."""

    def __init__(
        self,
        *,
        num_pages: int = 64,
        page_size: int = 16,
        max_num_sequence: int = 4,
        max_batch_tokens: int = 64,
        context_window: int = 1024,
        vocab_size: int = 300,
        window: Window | None = None,
        adapters: int = 0,
        whole_images: bool = False,
        overlaps: bool = False,
    ) -> None:
        self.limits = RunnerLimits(
            num_pages=num_pages,
            page_size=page_size,
            max_num_sequence=max_num_sequence,
            max_batch_tokens=max_batch_tokens,
            context_window=context_window,
            vocab_size=vocab_size,
            window=window,
            hidden_size=HIDDEN,
            adapters=AdapterLimits(adapters, RANK_STEP),
            whole_images=whole_images,
            overlaps=overlaps,
        )
        self.sequences: dict[int, FakeSequence] = {}
        self.batches: list[Batch] = []
        self.adapters: dict[int, AdapterParts] = {}
        """What was loaded into each slot."""
        self.faults, self.late_faults = list[Fault](), list[Fault]()
        """Called in order before each batch; when its samples are asked for."""
        self.started: list[FakeStep] = []
        """Steps under way, the oldest one first."""
        self.bad_rows: Callable[[Sequence[int]], bool] = lambda tokens: False
        """Takes a sequence's tokens; says whether its logits are NaN."""
        self._pages = FakePages(num_pages, page_size)

    @property
    def free_pages(self) -> int:
        return len(self._pages.free)

    def add_sequence(self, seq_id: int) -> None:
        assert seq_id not in self.sequences, f"sequence {seq_id} exists"
        if len(self.sequences) == self.limits.max_num_sequence:
            raise RequestError("no free sequence")
        self.sequences[seq_id] = FakeSequence()

    def fork_sequence(self, parent: int, child: int, length: int) -> None:
        source = self.sequences[parent]
        assert 0 < length <= source.length
        self.add_sequence(child)
        full, rest = divmod(length, self.limits.page_size)
        forked = FakeSequence(source.pages[:full], length, set(source.freed))
        for page in forked.owned:
            self._pages.share(page)
        if rest:
            assert full not in source.freed
            copy = self._pages.take()
            self._pages.tokens[copy] = self._pages.tokens[source.pages[full]][:rest]
            forked.pages.append(copy)
        self.sequences[child] = forked

    def rollback_sequence(self, seq_id: int, num_tokens: int) -> None:
        sequence = self.sequences[seq_id]
        assert 0 <= num_tokens <= sequence.length
        sequence.length -= num_tokens
        kept = self._pages_for(sequence.length)
        assert not sequence.freed or kept > max(sequence.freed), "pages are needed that are gone"
        for page in sequence.pages[kept:]:
            self._pages.drop(page)
        del sequence.pages[kept:]
        self._own_last_page(sequence)

    def kept_states(self, seq_id: int) -> Sequence[int]:
        return ()

    def export_pages(self, seq_id: int, length: int | None = None) -> Transfer:
        tokens = self.tokens_of(seq_id)[:length]
        return Transfer("fake", len(tokens), (), (np.array(tokens, np.int32),)).sealed()

    def import_pages(self, seq_id: int, transfer: Transfer, length: int) -> None:
        transfer.check("fake", length)
        if self._pages_for(length) > self.free_pages:
            raise RequestError("no free page for a sequence from elsewhere")
        self.add_sequence(seq_id)
        self._append(self.sequences[seq_id], transfer.tensors[0].tolist())

    def load_adapter(self, slot: int, parts: AdapterParts) -> None:
        assert 0 <= slot < self.limits.adapters.slots
        self.adapters[slot] = parts

    def remove_sequence(self, seq_id: int) -> None:
        for page in self.sequences.pop(seq_id).owned:
            self._pages.drop(page)

    def run(self, batch: Batch) -> BatchOutput:
        self.started.clear()
        step = self.submit(batch)
        try:
            return self.collect(step)
        except BaseException:
            for row in batch.rows:
                self.rollback_sequence(row.seq_id, len(row.token_ids))
            raise

    def submit(self, batch: Batch, after: FakeStep | None = None) -> FakeStep:
        assert after is None or [after] == self.started, "another step is under way"
        self._check(batch)
        for fault in self.faults:
            fault(batch)
        self.batches.append(batch)
        step = FakeStep(batch, [self._run_row(_known(row, after)) for row in batch.rows])
        self.started = [*([] if after is None else [after]), step]
        return step

    def collect(self, started: FakeStep) -> BatchOutput:
        assert started is self.started.pop(0), "it is not the oldest step"
        for fault in self.late_faults:
            fault(started.batch)
        for row in started.batch.rows:
            sequence = self.sequences.get(row.seq_id)  # None: it has ended meanwhile
            if sequence is not None and len(row.samplings) <= 1:
                self._trim(sequence, len(self.started))
        return BatchOutput(_by_column(started))

    def reset(self) -> None:
        self.started.clear()
        self.sequences.clear()
        self._pages = FakePages(self.limits.num_pages, self.limits.page_size)

    def check_integrity(self) -> None:
        counts = [0] * self.limits.num_pages
        for sequence in self.sequences.values():
            assert len(sequence.pages) == self._pages_for(sequence.length)
            for page in sequence.owned:
                counts[page] += 1
        assert counts == self._pages.references
        assert sorted(self._pages.free) == [i for i, count in enumerate(counts) if count == 0]

    def tokens_of(self, seq_id: int) -> list[int]:
        """The sequence's tokens, from its pages; -1 for tokens of pages that were given back."""
        sequence, size = self.sequences[seq_id], self.limits.page_size
        found: list[int] = []
        for i, page in enumerate(sequence.pages):
            found += [-1] * size if i in sequence.freed else self._pages.tokens[page]
        assert len(found) == sequence.length
        return found

    def _check(self, batch: Batch) -> None:
        """Assert that the batch keeps the contract: breaking it is a bug of the core. Raises
        RequestError if there are too few pages."""
        ids = [row.seq_id for row in batch.rows]
        assert ids and len(set(ids)) == len(ids), "a sequence may have one row"
        assert all(row.token_ids for row in batch.rows), "a row needs a token"
        assert all(len(row.samplings) <= len(row.token_ids) for row in batch.rows)
        scorings = [(row, row.scoring) for row in batch.rows if row.scoring is not None]
        assert sum(len(one.next_ids) for _, one in scorings) <= self.limits.max_scores
        assert all(_is_of_row(row, one) for row, one in scorings), "it scores other tokens"
        assert sum(len(row.token_ids) for row in batch.rows) <= self.limits.max_batch_tokens
        assert all(_has_whole_images(row) for row in batch.rows), "an image is cut"
        if sum(self._new_pages(row) for row in batch.rows) > self.free_pages:
            raise RequestError("too few pages are free")

    def _run_row(self, row: BatchRow) -> list[Sampled]:
        sequence = self.sequences[row.seq_id]
        self._append(sequence, row.token_ids)
        assert sequence.length <= self.limits.context_window
        tokens = self.tokens_of(row.seq_id)
        first = len(tokens) - len(row.samplings) + 1
        ends = range(first, first + len(row.samplings))
        seen = [self._seen(tokens[:end]) for end in ends]
        scores = [] if row.scoring is None else self._scores(row, tokens, row.scoring)
        return scores + [self._sample(*pair) for pair in zip(seen, row.samplings, strict=True)]

    def _append(self, sequence: FakeSequence, tokens: Sequence[int]) -> None:
        for token in tokens:
            if sequence.length % self.limits.page_size == 0:
                sequence.pages.append(self._pages.take())
            self._pages.tokens[sequence.pages[-1]].append(token)
            sequence.length += 1

    def _scores(self, row: BatchRow, tokens: list[int], scoring: Scoring) -> list[Sampled]:
        start = len(tokens) - len(row.token_ids) + scoring.first + 1
        ends = range(start, start + len(scoring.next_ids))
        likely = Sampling(temperature=0, top_logprobs=scoring.top)
        scores = [self._sample(self._seen(tokens[:end]), likely) for end in ends]
        for one, end, token in zip(scores, ends, scoring.next_ids, strict=True):
            logits = fake_logits(self._seen(tokens[:end]), self.limits.vocab_size)
            one.token_id, one.logprob = token, float(log_softmax(logits)[token])
        return scores

    def _seen(self, tokens: list[int]) -> list[int]:
        """The tokens that the last of these tokens sees."""
        window = self.limits.window
        if window is None:
            return tokens
        start = max(len(tokens) - window.size, window.sinks)
        seen = tokens[: window.sinks] + tokens[start:]
        assert min(seen) >= 0, "a token is seen whose page was given back"
        return [len(tokens), *seen]

    def _trim(self, sequence: FakeSequence, undone: int) -> None:
        if self.limits.window is None:
            return
        unseen = self.limits.window.unseen(sequence.length - 1 - undone, self.limits.page_size)
        for i in set(unseen) - sequence.freed:
            self._pages.drop(sequence.pages[i])
        sequence.freed |= set(unseen)

    def _sample(self, tokens: Sequence[int], sampling: Sampling) -> Sampled:
        if self.bad_rows(tokens):
            return Sampled(-1, error="logits are not finite")
        logits = fake_logits(tokens, self.limits.vocab_size)
        found = sample(logits, sampling)
        found.hidden = logits[:HIDDEN].tolist() if sampling.wants_hidden else None
        return found

    def _own_last_page(self, sequence: FakeSequence) -> None:
        """Shorten the last page after a rollback. If another sequence shares it, copy it first."""
        rest = sequence.length % self.limits.page_size
        if not rest:
            return
        last = sequence.pages[-1]
        kept = self._pages.tokens[last][:rest]
        if self._pages.references[last] > 1:
            self._pages.drop(last)
            last = sequence.pages[-1] = self._pages.take()
        self._pages.tokens[last] = kept

    def _new_pages(self, row: BatchRow) -> int:
        sequence = self.sequences[row.seq_id]
        return self._pages_for(sequence.length + len(row.token_ids)) - len(sequence.pages)

    def _pages_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.page_size)


def _known(row: BatchRow, before: FakeStep | None) -> BatchRow:
    """The row with the token that the step before has chosen, if it is that one's."""
    if row.chosen_by == KNOWN:
        return row
    assert before is not None, "no step is under way"
    ((chosen,), (_,)) = before.samples[row.chosen_by], row.token_ids
    return replace(row, token_ids=[max(chosen.token_id, 0)], chosen_by=KNOWN)


def _by_column(step: FakeStep) -> Sequence[Sequence[Sampled]]:
    """As a real runner answers rows by column, where nothing but tokens is asked."""
    samples = [one for found in step.samples for one in found]
    is_plain = all(one == Sampled(one.token_id) for one in samples)
    if isinstance(step.batch.rows, DecodeRows) and is_plain:
        return ChosenTokens([one.token_id for one in samples])
    return step.samples


def _is_of_row(row: BatchRow, scoring: Scoring) -> bool:
    """Each scored token but the last is the row's own, at its place."""
    own = row.token_ids[scoring.first + 1 : scoring.first + 1 + len(scoring.next_ids)]
    is_inside = 0 <= scoring.first < len(row.token_ids) >= scoring.first + len(scoring.next_ids)
    return is_inside and bool(scoring.next_ids) and [*scoring.next_ids[: len(own)]] == [*own]


def _has_whole_images(row: BatchRow) -> bool:
    """All negative ids are those of images, which are there as a whole."""
    places = [i for i, token in enumerate(row.token_ids) if token < 0]
    of_images = [i for one in row.images for i in range(one.at, one.at + one.count)]
    is_whole = all(one.first == 0 and one.count == one.picture.tokens for one in row.images)
    return places == of_images and is_whole
