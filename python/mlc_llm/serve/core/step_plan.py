"""One step of work, as the scheduler plans it and the core carries it out."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass, field, replace

from mlc_llm.record import record
from mlc_llm.runtime.batch import KNOWN, BatchRow
from mlc_llm.runtime.decode_rows import DecodeRows
from mlc_llm.serve.core.decode_group import DecodeGroup
from mlc_llm.serve.core.prefix_cache import PrefixMatch
from mlc_llm.serve.core.sequence import RequestState, Sequence


@record()
class Acceptance:
    """How many draft tokens of one row the model chose as well."""

    sequence: Sequence
    drafted: int
    accepted: int
    kept: int
    """Accepted tokens that stay in the pages: all but the one that ended the sequence, if any."""
    is_rejected: bool
    """The model chose another token. Else all were accepted, or the sequence ended."""


@dataclass
class StepPlan:
    """One step of work: `rows[i]` belongs to `sequences[i]`.

    One is made for each step. What most steps do not have is an attribute of the class until then.
    """

    budget: int
    """Tokens that may still be added."""
    scores: int = 0
    """Tokens of prompts that may still be scored."""
    rows: list[BatchRow] | DecodeRows = field(default_factory=list)
    sequences: list[Sequence] = field(default_factory=list)
    group: DecodeGroup | None = None
    """Of all its sequences; then its rows are columns."""
    decoding: int = 0
    """Rows that decode."""
    prompt_tokens: int = field(default=0, init=False)
    """Tokens of rows that do not decode."""
    prompts: int = field(default=0, init=False)
    """Sequences that lack more than one token: they wait, or their prompts are under way."""
    is_open: bool = field(default=True, init=False)
    """Another sequence may start. False once a row did not get all that it wanted."""
    preempted: tuple[Sequence, ...] = field(default=(), init=False)
    lookups: tuple[tuple[Sequence, PrefixMatch | None], ...] = field(default=(), init=False)
    """Sequences that were started, with what the prefix cache had for them; None: it was not asked.
    """
    begun_at: float | None = field(default=None, init=False)
    """When the device began to compute it; None: when it is run, or nobody knows."""
    ended_at: float = field(default=0.0, init=False)
    """When its samples were there."""
    draft_seconds: float = field(default=0.0, init=False)
    run_seconds: float = field(default=0.0, init=False)
    prefilled: dict[RequestState, int] = field(default_factory=dict, init=False)
    """Prompt tokens that were computed for the first time; known when the samples are."""
    generated: int = field(default=0, init=False)
    """Generated tokens that were, with forced tokens and accepted draft tokens."""
    chosen: int = field(default=0, init=False)
    """Tokens that the step has added to its sequences."""
    gaps: list[float] = field(default_factory=list, init=False)
    """For each sequence that got tokens before: the seconds since then."""
    acceptances: tuple[Acceptance, ...] = field(default=(), init=False)
    """One for each row with draft tokens; known when the samples are."""

    @property
    def num_computed(self) -> int:
        """Tokens of the step that stay in the pages."""
        kept = sum([one.kept for one in self.acceptances]) if self.acceptances else 0
        return self.prompt_tokens + self.decoding + kept

    @property
    def num_drafted(self) -> int:
        """Draft tokens in all rows; rows by column have none."""
        return 0 if self.group is not None else sum(len(draft_tokens_of(row)) for row in self.rows)

    def add(self, row: BatchRow, sequence: Sequence) -> None:
        """The next row."""
        assert isinstance(self.rows, list), "all rows are there"
        self.rows.append(row)
        self.sequences.append(sequence)

    def mark_computed(self, sequence: Sequence, count: int) -> None:
        """This step has computed the next `count` tokens of a sequence."""
        of_prompt, generated = sequence.mark_computed(count)
        self.generated += generated
        if of_prompt:
            request = sequence.request
            self.prefilled[request] = self.prefilled.get(request, 0) + of_prompt

    def forget_ended(self) -> None:
        """Go on without the rows of sequences that have ended since the step was planned, and with
        all tokens, which are known by now."""
        pairs = [
            (_with_token(row, sequence), sequence)
            for row, sequence in zip(self.rows, self.sequences, strict=True)
            if not sequence.progress.status.is_end
        ]
        self.rows, self.sequences = [row for row, _ in pairs], [one for _, one in pairs]
        self.group = None
        self.decoding = min(self.decoding, len(self.rows))

    def drop_drafts(self) -> bool:
        """Go back to rows without draft tokens; False where there are no others."""
        has_drafts = self.num_drafted > 0
        self.group = None
        self.rows = [_without_draft(row) for row in self.rows]
        return has_drafts

    def split(self) -> abc.Iterator[StepPlan]:
        """The same rows, each in a plan of its own."""
        for row, sequence in zip(self.rows, self.sequences, strict=True):
            yield StepPlan(0, rows=[row], sequences=[sequence])


def _with_token(row: BatchRow, sequence: Sequence) -> BatchRow:
    if row.chosen_by == KNOWN:
        return row
    return replace(row, token_ids=sequence.generated[-1:], chosen_by=KNOWN)


def draft_tokens_of(row: BatchRow) -> abc.Sequence[int]:
    """The draft tokens at the end of a row."""
    count = len(row.samplings) - 1
    return row.token_ids[-count:] if count > 0 else ()


def _without_draft(row: BatchRow) -> BatchRow:
    count = len(row.token_ids) - len(draft_tokens_of(row))
    return replace(row, token_ids=row.token_ids[:count], samplings=row.samplings[:1])
