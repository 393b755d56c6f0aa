"""What a step means for sequences of which each has got one more token, and nothing else."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.step_plan import StepPlan
from mlc_llm.serve.data import RequestStreamOutput

NOT_HERE = -1
_RUNNING, _shown = Status.RUNNING, RequestStreamOutput.shown
"""Looked up once: the attributes of an enumeration, and methods of a class, cost a call."""


def take_tokens(
    plan: StepPlan, token_ids: abc.Sequence[int], now: float
) -> tuple[list[RequestStreamOutput], abc.Sequence[int]]:
    """Take in the tokens of a plan whose rows choose one each, and only tokens that the tokenizer
    has. Returns the outputs, and the rows that are left to the general way.

    This is the one loop over all rows in a step that only decodes, so it calls nothing it need not.
    """
    if plan.group is None or plan.group.has_lost_its_first:
        return [], range(len(token_ids))
    left = plan.group.noteworthy(token_ids)
    if left:
        token_ids = [*token_ids]
        for row in left:
            token_ids[row] = NOT_HERE
    outputs: list[RequestStreamOutput] = []
    gaps = plan.gaps
    for i, sequence in enumerate(plan.sequences):
        token_id, progress = token_ids[i], sequence.progress
        if token_id == NOT_HERE or progress.status is not _RUNNING:
            continue  # it may have ended while the step was under way
        progress.computed = progress.reached = progress.computed + 1
        sequence.generated.append(token_id)
        request, output = sequence.request, sequence.output
        request.metrics.decode_tokens += 1
        if output.token_at is not None:
            gaps.append(now - output.token_at)
        output.token_at = now
        outputs.append(_shown(request.request_id, token_id))
    plan.generated += len(outputs)
    plan.chosen += len(outputs)
    return outputs, left
