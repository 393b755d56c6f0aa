"""The engine core: token ids in, token ids out. No TVM, no HTTP, no thread, no OpenAI.

One thread owns the core and calls it. Every method that ends or advances requests returns the
outputs, in order; the core calls nobody. Every accepted request gets exactly one usage output, as
its last one, whatever happens.

An exception from outside (a signal handler's) can leave an operation half done. The next operation
then ends every request with an error, and starts from nothing.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import abc
from typing import TYPE_CHECKING

from mlc_llm.errors import EngineDead, InvalidField, RequestError
from mlc_llm.runtime.batch import Runner
from mlc_llm.runtime.limits import RunnerLimits
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.accepted_requests import AcceptedRequests, Outputs
from mlc_llm.serve.core.adapters import Adapters
from mlc_llm.serve.core.admission import Admission, Prepared
from mlc_llm.serve.core.gauges import gauges
from mlc_llm.serve.core.handover import begin
from mlc_llm.serve.core.policy import RequestPolicy
from mlc_llm.serve.core.postprocess import Postprocessor
from mlc_llm.serve.core.prefix_cache import PrefixCache
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.speculation.drafter import Drafter
from mlc_llm.serve.core.step_runner import reason_of
from mlc_llm.serve.core.steps import Steps
from mlc_llm.serve.core.telemetry import Telemetry
from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.event_trace_recorder import EventTraceRecorder
from mlc_llm.serve.limits import longest_sequence
from mlc_llm.serve.metrics import EngineMetrics, special_usage_json, usage_with, zero_usage_json
from mlc_llm.serve.request import Request
from mlc_llm.tokenizers import Tokenizer

if TYPE_CHECKING:
    from mlc_llm.images.reader import ImageReader

_log = logging.getLogger(__name__)


class EngineCore:
    """Continuous batching over one runner."""

    def __init__(
        self,
        runner: Runner,
        tokenizer: Tokenizer,
        config: EngineConfig,
        *,
        stop_token_ids: abc.Iterable[int] = (),
        trace: EventTraceRecorder | None = None,
        drafter: Drafter | None = None,
        policy: RequestPolicy | None = None,
        clock: abc.Callable[[], float] = time.perf_counter,
        images: ImageReader | None = None,
    ) -> None:
        """`stop_token_ids`: the model's own; a request may name more.
        `drafter`: who drafts tokens, unless `config` names a drafter of the core's own.
        `policy`: None is that of an engine with a model. `clock`: gives the time in seconds.
        `images`: None for a model that reads none.

        A limit that `config` leaves open is the runner's.
        """
        policy = policy or RequestPolicy()
        self._runner = runner
        self._capacity = runner.limits.capacity
        stops = frozenset(stop_token_ids)
        self.adapters = Adapters(runner.limits.adapters.slots, runner.load_adapter)
        """The LoRA adapters. They are loaded and dropped between two steps, by the core's owner."""
        self._admission = Admission(
            *(tokenizer, runner.limits, config, stops, policy),
            adapters=self.adapters,
            images=images,
            clock=clock,
        )
        longest = self.longest_sequence = longest_sequence(self._admission.context, self._capacity)
        """The most tokens that a prompt and its answer have together; a prompt has fewer."""
        self._scheduler = Scheduler(runner, config)
        self._postprocessor = Postprocessor(tokenizer, longest, policy)
        self._telemetry = Telemetry(trace, policy, clock)
        self._requests = AcceptedRequests(self._scheduler, self._telemetry, self.adapters)
        self._steps = self._make_steps(config, drafter, policy)
        self._arrivals = itertools.count()
        self.fault: str | None = None
        """Why nothing can be computed any more; None: it can."""
        self._is_torn = False
        """An operation is half done."""
        self._owed: Outputs = []
        """Ends of requests that a torn operation cost. The next operation gives them out."""

    @property
    def is_idle(self) -> bool:
        """A step would do nothing."""
        return not (self._requests or self._owed or self._is_torn)

    @property
    def num_preemptions(self) -> int:
        """How often a sequence had to give its pages back before its end."""
        return self._scheduler.num_preemptions

    @property
    def limits(self) -> RunnerLimits:
        """What the runner can hold."""
        return self._runner.limits

    @property
    def prefill_speed(self) -> tuple[int, float]:
        """Prompt tokens that were computed, and the seconds for them. Any thread may read it."""
        recorder = self._telemetry.recorder
        return recorder.prefill_tokens_sum, recorder.engine_prefill_time_sum

    @property
    def hidden_size(self) -> int:
        """Numbers of a hidden vector."""
        return self._runner.limits.hidden_size

    @property
    def prefix_cache(self) -> PrefixCache:
        """Which ended sequences are kept. Read it only, or set its observer."""
        return self._scheduler.slots.cache

    @property
    def admission(self) -> Admission:
        """Its `prepare` may be called by any thread; all else is for the core alone."""
        return self._admission

    def has_request(self, request_id: str) -> bool:
        """True from `add_request` until the usage output is given out."""
        return request_id in self._requests

    def metrics(self) -> EngineMetrics:
        """The engine's numbers at this moment."""
        return EngineMetrics(self._numbers())

    def add_request(self, request: Request, prepared: Prepared | None = None) -> Outputs:
        """Queue a request. A request that needs no model is answered at once.

        prepared: the result of `admission.prepare`; without it, that is done here.

        Raises `UserError` for a request that is refused, and `ContextLengthExceeded` for a prompt
        that leaves no room in the context: then there is no output. A prompt that can never fit
        the pages ends with `error`. Raises `EngineDead` if there is a fault.
        """
        self._mend()
        if self.fault is not None:
            raise EngineDead(self.fault)
        if self.has_request(request.request_id):
            raise InvalidField("request_id", request.request_id, "it names a request that runs")
        if request.is_special:
            usage = special_usage_json(self._numbers())
            return self._given([RequestStreamOutput.usage(request.request_id, usage)])
        prepared = prepared or self._admission.prepare(request)
        arrival, now = next(self._arrivals), self._telemetry.now()
        state = self._admission.accept(request, prepared, arrival=arrival, now=now)
        if len(state.prompt) > self._capacity:
            self._telemetry.serving.ended["error"] += 1
            reason = _too_long(len(state.prompt), self._capacity)
            return self._given(_answer(request, "error", zero_usage_json(), reason))
        if state.handover is not None:
            more = begin(state, self._scheduler.slots, self.import_prefix)
            if more is not None:
                usage = usage_with(self._telemetry.close(state, "length"), more)
                return self._given(_answer(request, "length", usage))
        if not state.needs_model:
            return self._given(_answer(request, "length", self._telemetry.close(state, "length")))
        self._is_torn = True
        self._requests.add(state)
        self._is_torn = False
        return self._given([])

    def abort_request(self, request_id: str) -> Outputs:
        """End a request and free its pages. An unknown name changes nothing."""
        self._mend()
        outputs: Outputs = []
        if request_id in self._requests:
            self._is_torn = True
            outputs = self._requests.abort(request_id)
            self._steps.forget()
            self._is_torn = False
        return self._given(outputs)

    def step(self) -> Outputs:
        """Schedule, run, update: one call into the model. Does nothing when idle."""
        if self._is_torn:
            self._mend()
        self._is_torn = True
        try:
            outputs = self._steps.next()
        except Exception as error:
            outputs = self._collapse(error)
        self._is_torn = False
        return self._given(outputs)

    def export_prefix(self, tokens: abc.Sequence[int], salt: str = "") -> Transfer:
        """What the prefix cache has of the beginning of a prompt, for `import_prefix` of another
        engine with the same model. Raises `TransferRefused` if it has not all of it."""
        assert not self._is_torn, "an operation is half done"
        return self._scheduler.slots.export(tokens, salt)

    def import_prefix(self, tokens: abc.Sequence[int], transfer: Transfer, salt: str = "") -> None:
        """Take over what another engine has computed: the next prompt that begins with these tokens
        finds them in the prefix cache. salt: only prompts with the same one do.

        Raises `TransferRefused` and `RequestError`; then nothing but the cache has changed.
        """
        self._mend()
        running = self._scheduler.num_running
        self._is_torn = True
        try:
            self._scheduler.slots.take_in(tokens, transfer, salt, running)
        except RequestError:
            self._is_torn = False
            raise
        self._is_torn = False
        if self.prefix_cache.observer is not None:
            self.prefix_cache.observer.settled()

    def reset(self) -> Outputs:
        """Abort everything; forget all metrics and all that the prefix cache keeps.

        Works in whatever state an interrupted operation has left things.
        """
        outputs = self._end_all(Status.ABORTED)
        self._telemetry.reset()
        return self._given(outputs)

    def check_integrity(self) -> None:
        """AssertionError unless requests, queues and pages agree with each other."""
        assert not self._is_torn, "an operation is half done"
        self._requests.check_integrity()
        self._scheduler.check_integrity()
        self.adapters.check_integrity()
        self._steps.check_integrity()
        if not self.prefix_cache.num_sequences:
            assert self._runner.free_pages == self._runner.limits.num_pages

    def _make_steps(
        self, config: EngineConfig, drafter: Drafter | None, policy: RequestPolicy
    ) -> Steps:
        return Steps(
            *(self._runner, self._scheduler, self._postprocessor, self._telemetry, self._requests),
            config=config,
            drafter=drafter,
            longest=self.longest_sequence,
            by_tokens=policy.by_tokens,
        )

    def _numbers(self) -> dict[str, object]:
        return self._telemetry.numbers(gauges(self._scheduler, self._runner))

    def _collapse(self, error: Exception) -> Outputs:
        """The bookkeeping itself failed: end everything with an error, start from nothing."""
        _log.exception("a step of the engine failed; %d requests end", len(self._requests))
        if isinstance(error, EngineDead):
            self.fault = reason_of(error)
        return self._end_all(Status.FAILED, reason_of(error))

    def _mend(self) -> None:
        """Start from nothing if the last operation is half done."""
        if self._is_torn:
            _log.warning("the engine was interrupted; %d requests end", len(self._requests))
            self._owed += self._end_all(Status.FAILED, "the engine was interrupted in the middle")

    def _given(self, outputs: Outputs) -> Outputs:
        """These outputs, behind those that are owed. An operation ends with this."""
        observer = self._scheduler.slots.cache.observer
        if observer is not None:
            observer.settled()
        if self._owed:
            outputs, self._owed = self._owed + outputs, []
        return outputs

    def _end_all(self, status: Status, error: str | None = None) -> Outputs:
        """End every request and forget every sequence, whatever state they are in."""
        self._is_torn = True
        self._runner.reset()
        self._steps.reset()
        outputs = self._requests.end_all(status, error)
        self._is_torn = False
        return outputs


def _answer(
    request: Request, reason: FinishReason, usage: str, error: str | None = None
) -> Outputs:
    """The whole answer to a request that is never queued."""
    request_id = request.request_id
    return [
        RequestStreamOutput.finished(request_id, request.n, reason, error),
        RequestStreamOutput.usage(request_id, usage),
    ]


def _too_long(length: int, capacity: int) -> str:
    return (
        f"the prompt has {length} tokens and the KV cache holds {capacity}; "
        "raise max_total_sequence_length"
    )
