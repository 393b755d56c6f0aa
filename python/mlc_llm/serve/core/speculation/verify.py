"""Rows that end with draft tokens: where there is room for them, and what the model accepts."""

from __future__ import annotations

from collections import abc

from mlc_llm.runtime.batch import BatchRow, Runner
from mlc_llm.serve.config_fields import drafted_rows
from mlc_llm.serve.core.page_budget import PageBudget
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.speculation.draft_sequence import DraftSequence
from mlc_llm.serve.core.step_plan import Acceptance, StepPlan, draft_tokens_of


class DraftVerifier:
    """Adds draft tokens to the rows of a plan, and removes those that were not accepted."""

    def __init__(self, runner: Runner, pages: PageBudget) -> None:
        self._runner, self._limits = runner, runner.limits
        self._pages = pages
        self.max_rows = drafted_rows(runner.limits.max_num_sequence)
        """Tokens that may be chosen in a step, draft tokens included."""

    def draft_rooms(self, plan: StepPlan, most: abc.Sequence[int]) -> list[int]:
        """Draft tokens that fit behind each row, at most `most[i]`, whatever the others take.

        Nothing is evicted or preempted for draft tokens, and no other row loses a token.
        """
        rows, size = len(plan.rows), self._pages.page_size
        if plan.group is not None:  # nobody has counted its pages
            self._pages.start_step(plan.group.pages_needed())
        spare, budget = self._pages.available // rows * size, plan.budget // rows
        if self._limits.has_states:
            budget = min(budget, self._limits.draft_states // rows)
        # A row may fill the page behind its known tokens, and its share of the free pages.
        return [
            max(min(wanted, budget, -sequence.known % size + spare), 0)
            for sequence, wanted in zip(plan.sequences, most, strict=True)
        ]

    def add_draft(self, plan: StepPlan, index: int, draft: DraftSequence) -> None:
        """Put a draft behind row `index`. It has at most as many tokens as `draft_rooms` allows."""
        row, sequence, more = plan.rows[index], plan.sequences[index], len(draft.token_ids)
        assert len(draft.samplings) == more + 1 and sequence.is_decoding
        self._pages.reserve(sequence.progress.computed + len(row.token_ids), more)
        plan.budget -= more
        assert plan.budget >= 0 and self._pages.available >= 0, "no room for draft tokens"
        token_ids = [*row.token_ids, *draft.token_ids]
        assert isinstance(plan.rows, list), "nobody drafts for rows by column"
        plan.rows[index] = BatchRow(row.seq_id, token_ids, draft.samplings, adapter=row.adapter)

    def verify_drafts(
        self, plan: StepPlan, sequence: Sequence, row: BatchRow, known_before: int
    ) -> None:
        """Compare a row's draft tokens with the committed ones, and roll the others back.

        known_before: tokens that were known before the row's samples were taken in. The result is
        the last of `plan.acceptances`. Called once for each row with draft tokens.
        """
        drafted, said = draft_tokens_of(row), sequence.tokens(known_before, sequence.known)
        differing = (i for i, (a, b) in enumerate(zip(drafted, said, strict=False)) if a != b)
        accepted = next(differing, min(len(drafted), len(said)))
        progress = sequence.progress
        in_pages = progress.computed + len(drafted)
        kept = min(accepted, sequence.remaining - 1)
        plan.mark_computed(sequence, kept)
        assert progress.seq_id is not None
        self._runner.rollback_sequence(progress.seq_id, in_pages - progress.computed)
        is_rejected = accepted < min(len(drafted), len(said))
        plan.acceptances += (Acceptance(sequence, len(drafted), accepted, kept, is_rejected),)
