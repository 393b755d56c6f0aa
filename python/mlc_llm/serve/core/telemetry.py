"""Writes down what the engine does: metrics, the event trace, and each request's usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict

from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.core.prefix_cache import PrefixMatch
from mlc_llm.serve.core.sequence import RequestState
from mlc_llm.serve.core.step_plan import StepPlan, draft_tokens_of
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.metrics import EngineMetricsRecorder
from mlc_llm.serve.serving_metrics import ServingMetrics

STEPS_AT_ONCE = 32
"""Steps that only decode are added up together: a step of the model empties the processor's caches,
so that the code for it comes from memory each time."""


class Telemetry:
    """The numbers of the engine and of its requests. It decides nothing."""

    def __init__(
        self,
        trace: EventTraceRecorder | None,
        policy: RequestPolicy,
        clock: Callable[[], float],
    ) -> None:
        """clock: gives the time in seconds; only differences count."""
        self.now = clock
        self.trace = trace
        self.recorder = EngineMetricsRecorder()
        self.serving = ServingMetrics()
        self._policy = policy
        self._steps: list[tuple[float, int, int, int, int, int, list[float]]] = []
        """What steps did that are not added up yet: see `record_step`."""

    def note(self, request: RequestState, event: str) -> None:
        """Put an event of a request into the trace, if there is one."""
        if self.trace is not None:
            self.trace.add_event(request.request_id, event)

    def note_plan(self, plan: StepPlan) -> None:
        """Write down which sequences were preempted for the step, and which ones start with it."""
        for sequence in plan.preempted:
            self.note(sequence.request, "preempt")
        now = self.now()
        for sequence, prefix in plan.lookups:
            self.serving.started(sequence.request.metrics, now)
            if prefix is not None:
                self._note_lookup(sequence.request, prefix)

    def note_drafts(self, plan: StepPlan) -> None:
        """Write down how many tokens were drafted for each row."""
        for sequence, row in zip(plan.sequences, plan.rows, strict=True):
            if draft_tokens_of(row):
                self.note(sequence.request, f"draft {len(draft_tokens_of(row))} tokens")

    def record_step(self, plan: StepPlan) -> None:
        """Write down what a step did, and how long it took."""
        self._steps.append(
            (
                plan.draft_seconds + plan.run_seconds,
                plan.num_computed,
                sum(plan.prefilled.values()),
                plan.generated,
                0 if plan.acceptances or plan.prompt_tokens else plan.decoding,
                plan.chosen,
                plan.gaps,
            )
        )
        if plan.prefilled or len(self._steps) >= STEPS_AT_ONCE:
            self._settle()
        for request in plan.prefilled:
            request.metrics.prefill_s += plan.run_seconds
        if plan.acceptances:
            self.recorder.record_draft(plan.draft_seconds, len(plan.rows))
            self.recorder.record_verify(plan.run_seconds, len(plan.rows))
        for one in plan.acceptances:
            self.recorder.record_acceptance(one.drafted, one.accepted)
            words = f"accepted {one.accepted} of {one.drafted} drafted tokens"
            self.note(one.sequence.request, words)

    def _settle(self) -> None:
        """Add up the steps that wait for it."""
        for seconds, computed, of_prompts, generated, batch_size, chosen, gaps in self._steps:
            self.recorder.record_step(
                seconds,
                tokens=computed,
                prefill_tokens=of_prompts,
                decode_tokens=generated,
                batch_size=batch_size,
            )
            self.serving.step(computed=computed, generated=chosen, gaps=gaps)
        self._steps.clear()

    def close(self, request: RequestState, reason: FinishReason) -> str:
        """Write down the numbers of a request that is over; returns its usage as JSON."""
        request.metrics.completion_tokens = request.completion_tokens
        request.metrics.finish(self.now())
        self.recorder.record_finished(request.metrics)
        config = request.config
        self.serving.end(request.metrics, reason, n=config.n, limit=config.max_tokens)
        return self._policy.usage_json(request)

    def numbers(self, gauges: Mapping[str, float]) -> dict[str, object]:
        """All metrics of the engine; `gauges` are added to those of `serving`."""
        self._settle()
        return {**self.recorder.asdict(), "serving": {**self.serving.asdict(), **gauges}}

    def reset(self) -> None:
        """Start all numbers again from zero."""
        self._steps.clear()
        self.recorder.reset()
        self.serving = ServingMetrics()

    def note_rows(self, plan: StepPlan, edge: str) -> None:
        """For the trace: the requests of the plan start or finish (`edge`) to compute.

        The event says `prefill`, `verify` (with draft tokens) or `decode`.
        """
        kinds = {sequence.request: "decode" for sequence in plan.sequences}
        pairs = zip(plan.sequences, plan.rows, strict=True)
        kinds |= {sequence.request: "verify" for sequence, row in pairs if draft_tokens_of(row)}
        others = (sequence for sequence in plan.sequences if not sequence.is_decoding)
        kinds |= {sequence.request: "prefill" for sequence in others}
        for request, kind in kinds.items():
            self.note(request, f"{edge} {kind}")

    def _note_lookup(self, request: RequestState, prefix: PrefixMatch) -> None:
        """Tokens count as cached for the user only before the request's first token is computed."""
        if request.metrics.prefill_tokens == 0:
            request.metrics.cached_tokens = prefix.length
            divergence = None if prefix.divergence is None else asdict(prefix.divergence)
            self.recorder.record_lookup(prefix.length, divergence)
            self.serving.lookup(len(request.prompt), prefix.length)
        if prefix.length:
            self.note(request, f"prefix cache: {prefix.length} of {len(request.prompt)} tokens")
        if prefix.divergence is not None:
            self.note(request, str(prefix.divergence))
