"""Runs a plan. A fault in the model becomes the error of the row that it belongs to."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from mlc_llm.errors import EngineDead
from mlc_llm.runtime.batch import Batch, Runner, Sampled
from mlc_llm.serve.core.step_plan import StepPlan

_log = logging.getLogger(__name__)


def run_rows(runner: Runner, plan: StepPlan) -> Sequence[Sequence[Sampled]]:
    """The samples of each row of the plan.

    A run that fails has changed no sequence. So it is tried again, without draft tokens if there
    are any, else each row alone. A row that fails alone gets one sample, with the error. Raises
    `EngineDead` if no other run can succeed.
    """
    try:
        samples = runner.run(Batch(plan.rows)).samples
        assert len(samples) == len(plan.sequences), "the runner answered another batch"
        return samples
    except EngineDead:
        raise
    except Exception as error:
        return recovered(runner, plan, error)


def recovered(runner: Runner, plan: StepPlan, error: Exception) -> Sequence[Sequence[Sampled]]:
    """The same of a plan whose run has failed with an error."""
    if plan.drop_drafts():
        return run_rows(runner, plan)
    if len(plan.rows) == 1:
        request_id = plan.sequences[0].request.request_id
        _log.warning("request %s failed in the model: %s", request_id, error)
        return [[Sampled(-1, error=reason_of(error))]]
    return [samples for one in plan.split() for samples in run_rows(runner, one)]


def reason_of(error: Exception) -> str:
    """The message of an error, or its type if it has none."""
    return str(error) or type(error).__name__
