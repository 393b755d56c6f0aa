"""One step of work, as the scheduler plans it and the core carries it out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mlc_llm.runtime.batch import BatchRow
from mlc_llm.serve.core.prefix_cache import Origin
from mlc_llm.serve.core.request_state import Branch, RequestState


@dataclass(frozen=True)
class Verdict:
    """What became of the guesses in one row."""

    branch: Branch
    drafted: int
    accepted: int
    kept: int
    """Of those, the ones that stay in the pages: a token that ends a branch does not."""
    is_rejected: bool
    """Whether the model said something else; else the branch ended, or all of them came true."""


@dataclass(slots=True)
class Plan:
    """One step of work: `rows[i]` belongs to `branches[i]`."""

    budget: int
    """Tokens that may still be added."""
    rows: list[BatchRow] = field(default_factory=list)
    branches: list[Branch] = field(default_factory=list)
    prompt_tokens: int = 0
    """Tokens of rows that do not decode."""
    decoding: int = 0
    """Rows that decode."""
    reserved_pages: int = 0
    """Free pages that the rows so far will take."""
    is_open: bool = True
    """Whether a new branch may still start: False once something did not fit whole."""
    preempted: list[Branch] = field(default_factory=list)
    lookups: list[tuple[Branch, Origin]] = field(default_factory=list)
    """Branches that were started, with what the prefix cache had for them."""
    draft_seconds: float = 0.0
    run_seconds: float = 0.0
    prefilled: dict[RequestState, int] = field(default_factory=dict)
    """Tokens of prompts that were computed for the first time; filled as samples are taken in."""
    generated: int = 0
    """Generated tokens that were, forced ones and accepted guesses among them."""
    verdicts: list[Verdict] = field(default_factory=list)
    """Of the rows with drafts; filled as their samples are taken in."""

    @property
    def num_computed(self) -> int:
        """Tokens of the step that stay in the pages."""
        return self.prompt_tokens + self.decoding + sum(one.kept for one in self.verdicts)

    def account(self, branch: Branch, count: int) -> None:
        """The next `count` tokens of a branch were computed in this step."""
        of_prompt, generated = branch.account(count)
        self.generated += generated
        if of_prompt:
            request = branch.request
            self.prefilled[request] = self.prefilled.get(request, 0) + of_prompt

    @property
    def num_drafted(self) -> int:
        """Drafted tokens in all rows."""
        return sum(len(drafts_of(row)) for row in self.rows)

    def drop_drafts(self) -> bool:
        """Go back to plain rows; False where there is nothing to drop."""
        has_drafts = self.num_drafted > 0
        self.rows = [_without_drafts(row) for row in self.rows]
        return has_drafts

    def split(self) -> Iterator[Plan]:
        """The same rows, one a plan."""
        for row, branch in zip(self.rows, self.branches, strict=True):
            yield Plan(0, [row], [branch])


def drafts_of(row: BatchRow) -> Sequence[int]:
    """The guesses at the end of a row."""
    count = len(row.samplings) - 1
    return row.token_ids[-count:] if count > 0 else ()


def _without_drafts(row: BatchRow) -> BatchRow:
    count = len(row.token_ids) - len(drafts_of(row))
    return replace(row, token_ids=row.token_ids[:count], samplings=row.samplings[:1])
