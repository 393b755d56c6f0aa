"""Plans steps in which all running sequences decode, without a look at each of them."""

from __future__ import annotations

from array import array

from mlc_llm.runtime.batch import Runner
from mlc_llm.runtime.decode_rows import DecodeRows
from mlc_llm.serve.core.decode_group import DecodeGroup
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.step_plan import StepPlan


class DecodeGroups:
    """Keeps the group of all running sequences while they stay the same."""

    def __init__(self, longest: int, runner: Runner) -> None:
        self._longest, self._runner = longest, runner
        self._most_tokens = runner.limits.max_batch_tokens
        self._group: DecodeGroup | None = None

    def forget(self) -> None:
        """A step follows that is not the group's."""
        self._group = None

    def plan(self, running: list[Sequence]) -> StepPlan | None:
        """The next step of sequences, if they are a group, and get on with the free pages."""
        group = self._group
        if group is None or group.sequences != running:
            if not all(map(_is_steady, running)):
                return None
            group = self._group = self._made([*running])
        needed = group.pages_needed()
        if needed and needed > self._runner.free_pages:
            return None
        return self._plan(group, group.rows())

    def plan_behind(self, plan: StepPlan, running: list[Sequence]) -> StepPlan | None:
        """The step behind one that is under way and decodes all that runs. A sequence that will
        have ended by then sits it out. None: its rows have to be planned one by one, or later."""
        group, chosen_by = plan.group, None
        if group is None or group.sequences != running or group.may_end():
            rows = self._going_on(plan, running)
            if not rows or 2 * len(rows) < len(running):
                return None
            chosen_by = array("i", rows)
            group = self._made([plan.sequences[i] for i in rows])
        self._group = group
        if group.pages_needed(1) > self._runner.free_pages:
            return None
        return self._plan(group, group.rows_behind(chosen_by))

    def _going_on(self, plan: StepPlan, running: list[Sequence]) -> list[int]:
        """Rows of a plan that need another token behind it; none if it does not decode all."""
        if plan.group is None and not all(map(_is_steady, running)):
            return []
        row_of = {one: i for i, one in enumerate(plan.sequences)}
        if any(one not in row_of for one in running):
            return []
        return [row_of[one] for one in running if one.left(self._longest) > 1]

    def check_integrity(self, running: list[Sequence]) -> None:
        """AssertionError unless the group is what it would be if it were made now."""
        if self._group is not None and self._group.sequences == running:
            self._group.check_integrity()

    def _made(self, sequences: list[Sequence]) -> DecodeGroup:
        return DecodeGroup(sequences, self._longest, self._runner.limits.page_size)

    def _plan(self, group: DecodeGroup, rows: DecodeRows) -> StepPlan:
        count = len(group.sequences)
        # By place, not by name: a class makes a dictionary of names.
        return StepPlan(self._most_tokens - count, 0, rows, group.sequences, group, count)


def _is_steady(sequence: Sequence) -> bool:
    request = sequence.request
    return sequence.is_decoding and request.is_free and request.handover is None
