"""Takes the samples of a step into their sequences, row by row: any row that a step can have.

`take_tokens.py` does it for all rows at once, where each has one token and nothing else.
"""

from __future__ import annotations

from collections import abc

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import BatchRow, Sampled
from mlc_llm.serve.core.accepted_requests import AcceptedRequests
from mlc_llm.serve.core.postprocess import Postprocessor
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.sequence import Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.speculation.verify import DraftVerifier
from mlc_llm.serve.core.step_plan import StepPlan, draft_tokens_of
from mlc_llm.serve.core.telemetry import Telemetry


class RowTaker:
    """Of one engine core."""

    def __init__(
        self,
        scheduler: Scheduler,
        postprocessor: Postprocessor,
        verifier: DraftVerifier,
        telemetry: Telemetry,
        requests: AcceptedRequests,
    ) -> None:
        self._scheduler = scheduler
        self._postprocessor = postprocessor
        self._verifier = verifier
        self._telemetry = telemetry
        self._requests = requests

    def take(self, plan: StepPlan, i: int, found: abc.Sequence[Sampled], now: float) -> None:
        """Take in the samples of row i, which came at the time `now`. Its request may end."""
        row, sequence = plan.rows[i], plan.sequences[i]
        if sequence.progress.status.is_end:  # the row of another sequence failed the request
            return
        fault, several = self._postprocessor.take_scores(sequence, row, found)
        if fault is not None:
            self._telemetry.serving.corrupted += 1
            self._requests.fail(sequence.request, fault)
            return
        is_decoded = sequence.is_decoding
        plan.mark_computed(sequence, len(row.token_ids) - len(draft_tokens_of(row)))
        if not several:
            return
        if not is_decoded:
            self._scheduler.slots.cache_computed(sequence)
        output = sequence.output
        request = sequence.request
        if request.metrics.first_token_at is None and not request.ends_with_prompt:
            self._telemetry.serving.first_token(request.metrics, now)
        if output.token_at is not None:
            plan.gaps.append(now - output.token_at)
        output.token_at = now
        self._commit(plan, row, sequence, several)

    def _commit(
        self,
        plan: StepPlan,
        row: BatchRow,
        sequence: Sequence,
        samples: abc.Sequence[Sampled],
    ) -> None:
        """Take in a row's samples, and end the sequence if they end it."""
        if sequence.request.ends_with_prompt:
            if sequence.request.is_embedding:  # draft heads want hidden vectors, too
                sequence.request.embedding = samples[0].hidden
            if sequence.index == 0:
                self._telemetry.serving.prompt_tokens += sequence.request.metrics.prompt_tokens
            self._scheduler.finish(sequence, Status.LENGTH)
            return
        metrics, known, start = sequence.request.metrics, sequence.known, self._telemetry.now()
        generated = len(sequence.generated)
        draft_tokens, jumped = draft_tokens_of(row), metrics.jump_forward_tokens
        try:
            end = self._postprocessor.commit_row(sequence, draft_tokens, samples)
        except RequestError as error:
            self._requests.fail(sequence.request, str(error))
            return
        finally:
            plan.chosen += len(sequence.generated) - generated
        if sequence.request.wants_hidden:
            sequence.keep_hidden(known, samples)
        if draft_tokens:
            self._verifier.verify_drafts(plan, sequence, row, known)
        if metrics.jump_forward_tokens > jumped:
            forced = metrics.jump_forward_tokens - jumped
            self._telemetry.recorder.record_jump_forward(self._telemetry.now() - start, forced)
        if end is not None:
            self._scheduler.finish(sequence, end)
