"""The engine core: token ids in, token ids out. No TVM, no HTTP, no thread, no OpenAI.

Whoever owns the core calls it from one thread. Every method that ends or advances requests returns
the outputs, in order; the core calls nobody. Every accepted request gets exactly one usage output,
last, whatever happens to it.

An exception from outside (a signal handler's) can leave an operation half done. The next operation
then ends every request with an error first, and goes on from nothing.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.runtime.batch import Batch, BatchRow, Runner, Sampled
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.admission import Admission, Prepared
from mlc_llm.serve.core.postprocess import Postprocessor, take_output
from mlc_llm.serve.core.prefix_cache import Origin, PrefixCache
from mlc_llm.serve.core.queue_note import QueueNote
from mlc_llm.serve.core.request_state import Branch, RequestState, Status
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.speculation.prompt_lookup import PromptLookup
from mlc_llm.serve.core.speculation.speculator import Speculator
from mlc_llm.serve.core.step_plan import Plan, drafts_of
from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.limits import longest_sequence
from mlc_llm.serve.metrics import (
    EngineMetrics,
    EngineMetricsRecorder,
    special_usage_json,
    zero_usage_json,
)
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

Outputs = list[RequestStreamOutput]

_log = logging.getLogger(__name__)


class EngineCore:
    """Continuous batching over one runner."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        *,
        stop_token_ids: Iterable[int] = (),
        trace: EventTraceRecorder | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """`stop_token_ids`: the model's own; they end a request beside those it names itself.
        `drafter`: who guesses tokens, where `config` names none that the core has itself.

        A limit that `config` leaves open is the runner's.
        """
        self._runner, self._trace = runner, trace
        limits = runner.limits
        self._capacity = limits.capacity
        self.max_single_sequence_length = min(
            config.max_single_sequence_length or limits.context_window, limits.context_window
        )
        self._admission = Admission(
            tokenizer,
            limits.vocab_size,
            frozenset(stop_token_ids),
            can_pin=config.prefix_cache_mode == "radix" and not limits.windows,
            context=self.max_single_sequence_length,
        )
        self._scheduler = _scheduler(runner, config)
        self._queue_note = QueueNote(config)
        longest = longest_sequence(self.max_single_sequence_length, self._capacity)
        self.longest_sequence = longest
        """The most tokens that a prompt and its answer have together; a prompt has fewer."""
        self._postprocessor = Postprocessor(tokenizer, longest)
        self._speculator = _speculator(drafter, self._scheduler, config, longest)
        self._arrivals = itertools.count()
        self._requests: dict[str, RequestState] = {}
        self._is_torn = False
        """Whether an operation is half done."""
        self._owed: Outputs = []
        """Ends of requests that a torn operation cost, for the next one to give out."""
        self._recorder = EngineMetricsRecorder()

    @property
    def is_idle(self) -> bool:
        """True when a step would do nothing."""
        return not (self._requests or self._owed or self._is_torn)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence had to give its pages back before it was done."""
        return self._scheduler.num_preemptions

    @property
    def prefix_cache(self) -> PrefixCache:
        """What finished sequences stay; to be looked at only."""
        return self._scheduler.cache

    def has_request(self, request_id: str) -> bool:
        """True from `add_request` until the usage output is given out."""
        return request_id in self._requests

    def metrics(self) -> EngineMetrics:
        """The engine's numbers as they stand."""
        return self._recorder.metrics()

    @property
    def admission(self) -> Admission:
        """To prepare requests, which may be done by any thread; the rest is the core's."""
        return self._admission

    def add_request(self, request: Request, prepared: Prepared | None = None) -> Outputs:
        """Queue a request, or answer at once the one that needs no model.

        prepared: what `admission.prepare` made of it; without it, that is done here.

        Raises `UserError` for what is refused, and `ContextLengthExceeded` for a prompt that leaves
        no room in the context: then the request is not accepted and has no output. A prompt that
        can never fit the pages ends with `error`.
        """
        self._mend()
        if self.has_request(request.request_id):
            raise InvalidField("request_id", request.request_id, "it names a request that runs")
        if request.is_special:
            usage = special_usage_json(self._recorder.asdict())
            return self._given([RequestStreamOutput.usage(request.request_id, usage)])
        prepared = prepared or self._admission.prepare(request)
        arrival = next(self._arrivals)
        state = self._admission.accept(request, prepared, arrival=arrival, now=_now())
        if len(state.prompt) > self._capacity:
            return self._given(_answer(request, "error", zero_usage_json(), self._too_long(state)))
        if state.config.max_tokens == 0:
            return self._given(_answer(request, "length", self._close(state)))
        self._is_torn = True
        self._requests[state.request_id] = state
        self._scheduler.add(state)
        self._note(state, "request added to engine")
        self._note(state, "start request")
        self._is_torn = False
        return self._given([])

    def abort_request(self, request_id: str) -> Outputs:
        """End a request and free its pages. Nothing happens when the name is not known."""
        self._mend()
        state = self._requests.get(request_id)
        outputs: Outputs = []
        if state is not None:
            self._is_torn = True
            self._end(state, Status.ABORTED)
            outputs = self._report(state)
            self._is_torn = False
        return self._given(outputs)

    def step(self) -> Outputs:
        """Schedule, run, update: one call into the model. Does nothing when idle."""
        self._mend()
        self._is_torn = True
        try:
            plan = self._scheduler.schedule()
            if self._queue_note.is_due:
                self._queue_note.look(self._scheduler.num_running, self._scheduler.num_waiting)
            self._draft(plan)
            samples = self._run(plan)
            outputs = self._update(plan, samples)
        except Exception as error:
            outputs = self._collapse(error)
        self._is_torn = False
        return self._given(outputs)

    def reset(self) -> Outputs:
        """Abort everything; forget all sums and all that the prefix cache keeps.

        Works in whatever state an interrupted operation has left things.
        """
        outputs = self._end_all(Status.ABORTED)
        self._recorder.reset()
        return self._given(outputs)

    def check_integrity(self) -> None:
        """Raise AssertionError unless requests, queues and pages agree with each other."""
        assert not self._is_torn, "an operation is half done"
        assert not any(state.is_finished for state in self._requests.values())
        alive = sum(not b.status.is_end for s in self._requests.values() for b in s.branches)
        assert alive == self._scheduler.num_running + self._scheduler.num_waiting
        self._scheduler.check_integrity()
        if self._speculator is not None:
            self._speculator.check_integrity()
        if not self.prefix_cache.num_sequences:
            assert self._runner.free_pages == self._runner.limits.num_pages

    def _draft(self, plan: Plan) -> None:
        """Let rows of the plan check guesses, where that is wanted and likely to pay."""
        if self._speculator is None:
            return
        start = _now()
        self._speculator.draft(plan)
        plan.draft_seconds = _now() - start
        for branch, row in zip(plan.branches, plan.rows, strict=True):
            if drafts_of(row):
                self._note(branch.request, f"draft {len(drafts_of(row))} tokens")

    def _run(self, plan: Plan) -> list[Sequence[Sampled]]:
        """The runner's answer to a plan, with the time it took written down."""
        for branch in plan.preempted:
            self._note(branch.request, "preempt")
        for branch, origin in plan.lookups:
            self._note_lookup(branch.request, origin)
        if not plan.rows:
            return []
        if self._trace is not None:
            self._note_rows(plan, "start")
        start = _now()
        samples = self._run_rows(plan)
        plan.run_seconds = _now() - start
        if self._trace is not None:
            self._note_rows(plan, "finish")
        self._scheduler.pace.learn(
            plan.draft_seconds + plan.run_seconds,
            prompt_tokens=plan.prompt_tokens,
            decoding=plan.decoding,
        )
        return samples

    def _run_rows(self, plan: Plan) -> list[Sequence[Sampled]]:
        """A fault becomes the error of the rows it belongs to.

        A run that fails has changed no sequence, so each row can be tried again alone.
        """
        try:
            samples = list(self._runner.run(Batch(plan.rows)).samples)
            assert len(samples) == len(plan.rows), "the runner answered another batch"
            return samples
        except Exception as error:
            if plan.drop_drafts():
                return self._run_rows(plan)
            if len(plan.rows) == 1:
                request_id = plan.branches[0].request.request_id
                _log.warning("request %s failed in the model: %s", request_id, error)
                return [[Sampled(-1, error=_reason(error))]]
        return [samples for one in plan.split() for samples in self._run_rows(one)]

    def _update(self, plan: Plan, samples: list[Sequence[Sampled]]) -> Outputs:
        """Take the answers in, then say what there is to say about each request of the plan."""
        now = _now()
        for row, branch, several in zip(plan.rows, plan.branches, samples, strict=True):
            if branch.status.is_end:  # another branch's row failed the request
                continue
            fault = self._postprocessor.fault(several[0]) if several else None
            if fault is not None:
                self._fail(branch.request, fault)
                continue
            is_decoded = branch.is_decoding
            plan.account(branch, len(row.token_ids) - len(drafts_of(row)))
            if not several:
                continue
            if not is_decoded:
                self._scheduler.publish(branch)
            self._commit(plan, row, branch, several, now)
        self._record(plan)
        outputs: Outputs = []
        for state in dict.fromkeys([branch.request for branch in plan.branches]):
            outputs += self._report(state)
        return outputs

    def _commit(
        self, plan: Plan, row: BatchRow, branch: Branch, samples: Sequence[Sampled], now: float
    ) -> None:
        """Take in a row's samples, and end the branch if they end it."""
        metrics, known, start = branch.request.metrics, branch.known, _now()
        drafts, jumped = drafts_of(row), metrics.jump_forward_tokens
        metrics.saw_token(now)
        try:
            end = self._postprocessor.commit_row(branch, drafts, samples)
        except RequestError as error:
            self._fail(branch.request, str(error))
            return
        if drafts:
            plan.verdicts.append(self._scheduler.settle(plan, branch, row, known))
        if metrics.jump_forward_tokens > jumped:
            forced = metrics.jump_forward_tokens - jumped
            self._recorder.record_jump_forward(_now() - start, forced)
        if end is not None:
            self._scheduler.finish(branch, end)

    def _record(self, plan: Plan) -> None:
        """Write down what a plan did, and how long it took."""
        if self._speculator is not None:
            self._speculator.learn(plan)
        for request in plan.prefilled:
            request.metrics.prefill_s += plan.run_seconds
        if plan.verdicts:
            self._recorder.record_draft(plan.draft_seconds, len(plan.rows))
            self._recorder.record_verify(plan.run_seconds, len(plan.rows))
        self._recorder.record_step(
            plan.draft_seconds + plan.run_seconds,
            tokens=plan.num_computed,
            prefill_tokens=sum(plan.prefilled.values()),
            decode_tokens=plan.generated,
            batch_size=0 if plan.verdicts or plan.prompt_tokens else plan.decoding,
        )
        for verdict in plan.verdicts:
            self._recorder.record_acceptance(verdict.drafted, verdict.accepted)
            request, counts = verdict.branch.request, f"{verdict.accepted} of {verdict.drafted}"
            self._note(request, f"accepted {counts} drafted tokens")

    def _fail(self, state: RequestState, error: str) -> None:
        state.error = error
        self._end(state, Status.FAILED)
        self._scheduler.forget(state)

    def _end(self, state: RequestState, status: Status) -> None:
        """End every branch that is alive."""
        for branch in state.alive:
            self._scheduler.finish(branch, status)

    def _report(self, state: RequestState) -> Outputs:
        """What was not said yet about a request, and the usage when it is over."""
        output = take_output(state)
        outputs = [] if output is None else [output]
        if state.is_finished:
            del self._requests[state.request_id]
            self._note(state, "finish request")
            outputs.append(RequestStreamOutput.usage(state.request_id, self._close(state)))
        return outputs

    def _close(self, state: RequestState) -> str:
        """Write a request's numbers down; returns its usage."""
        state.metrics.completion_tokens = state.completion_tokens
        state.metrics.finish(_now())
        self._recorder.record_finished(state.metrics)
        return state.metrics.usage_json()

    def _collapse(self, error: Exception) -> Outputs:
        """The bookkeeping itself failed: end everything with an error, go on from nothing."""
        _log.exception("a step of the engine failed; %d requests end", len(self._requests))
        return self._end_all(Status.FAILED, _reason(error))

    def _mend(self) -> None:
        """Go on from nothing if the last operation was torn apart."""
        if self._is_torn:
            _log.warning("the engine was interrupted; %d requests end", len(self._requests))
            self._owed += self._end_all(Status.FAILED, "the engine was interrupted in the middle")

    def _given(self, outputs: Outputs) -> Outputs:
        """These outputs, behind those that are owed."""
        if self._owed:
            outputs, self._owed = self._owed + outputs, []
        return outputs

    def _end_all(self, status: Status, error: str | None = None) -> Outputs:
        """End every request and forget every sequence, whatever state they are in."""
        self._is_torn = True
        self._runner.reset()
        self._scheduler.clear()
        if self._speculator is not None:
            self._speculator.reset()
        states = list(self._requests.values())
        for state in states:
            state.error = error
            for branch in state.alive:
                branch.status = status
        outputs = [output for state in states for output in self._report(state)]
        self._is_torn = False
        return outputs

    def _too_long(self, state: RequestState) -> str:
        return (
            f"the prompt has {len(state.prompt)} tokens and the KV cache holds {self._capacity}; "
            "raise max_total_sequence_length"
        )

    def _note_lookup(self, state: RequestState, origin: Origin) -> None:
        """Only what is had before the first token is computed counts as cached for the user."""
        if state.metrics.prefill_tokens == 0:
            state.metrics.cached_tokens = origin.length
            divergence = None if origin.divergence is None else asdict(origin.divergence)
            self._recorder.record_lookup(origin.length, divergence)
        if origin.length:
            self._note(state, f"prefix cache: {origin.length} of {len(state.prompt)} tokens")
        if origin.divergence is not None:
            self._note(state, str(origin.divergence))

    def _note_rows(self, plan: Plan, end: str) -> None:
        """One end of the stretch in which the requests of a plan compute: `prefill`, `verify` with
        guesses to check, or `decode`."""
        kinds = {branch.request: "decode" for branch in plan.branches}
        pairs = zip(plan.branches, plan.rows, strict=True)
        kinds |= {branch.request: "verify" for branch, row in pairs if drafts_of(row)}
        kinds |= {branch.request: "prefill" for branch in plan.branches if not branch.is_decoding}
        for state, kind in kinds.items():
            self._note(state, f"{end} {kind}")

    def _note(self, state: RequestState, event: str) -> None:
        if self._trace is not None:
            self._trace.add_event(state.request_id, event)


def _scheduler(runner: Runner, config: EngineConfig) -> Scheduler:
    return Scheduler(
        runner,
        max_num_sequence=config.max_num_sequence or runner.limits.max_num_sequence,
        prefill_alone=config.prefill_mode == "chunked",
        step_budget=config.prefill_time_budget_ms / 1000,
        prefix_cache=config.prefix_cache_mode == "radix",
        max_recycling=config.prefix_cache_max_num_recycling_seqs,
    )


def _speculator(
    drafter: Drafter | None, scheduler: Scheduler, config: EngineConfig, max_length: int
) -> Speculator | None:
    if config.speculative_mode == "prompt_lookup":
        drafter = PromptLookup()
    if drafter is None:
        return None
    return Speculator(
        drafter, scheduler, draft_length=config.spec_draft_length, max_length=max_length
    )


def _answer(
    request: Request, reason: FinishReason, usage: str, error: str | None = None
) -> Outputs:
    """The whole answer to a request that is never queued."""
    request_id = request.request_id
    return [
        RequestStreamOutput.finished(request_id, request.n, reason, error),
        RequestStreamOutput.usage(request_id, usage),
    ]


def _reason(error: Exception) -> str:
    return str(error) or type(error).__name__


def _now() -> float:
    return time.perf_counter()
