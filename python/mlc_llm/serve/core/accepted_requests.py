"""The requests between `add_request` and their usage output, and how they end."""

from __future__ import annotations

from collections import abc

from mlc_llm.serve.core.adapters import Adapters
from mlc_llm.serve.core.handover import final_usage
from mlc_llm.serve.core.postprocess import take_output
from mlc_llm.serve.core.scheduler import Scheduler
from mlc_llm.serve.core.sequence import RequestState, Sequence
from mlc_llm.serve.core.sequence_state import Status
from mlc_llm.serve.core.telemetry import Telemetry
from mlc_llm.serve.data import RequestStreamOutput

Outputs = list[RequestStreamOutput]


class AcceptedRequests:
    """Requests by id. Each leaves with exactly one usage output, its last one."""

    def __init__(self, scheduler: Scheduler, telemetry: Telemetry, adapters: Adapters) -> None:
        self._adapters = adapters
        self._scheduler = scheduler
        self._telemetry = telemetry
        self._by_id: dict[str, RequestState] = {}

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._by_id

    def add(self, state: RequestState) -> None:
        """Queue a request."""
        self._by_id[state.request_id] = state
        self._adapters.take(state.adapter)
        self._scheduler.add(state)
        self._telemetry.note(state, "request added to engine")
        self._telemetry.note(state, "start request")

    def abort(self, request_id: str) -> Outputs:
        """End a request; its last outputs."""
        state = self._by_id[request_id]
        self._end(state, Status.ABORTED)
        return self._report(state)

    def fail(self, state: RequestState, error: str) -> None:
        """End a request with an error. Nothing of it stays in the prefix cache."""
        state.error = error
        self._end(state, Status.FAILED)
        self._scheduler.slots.forget(state)

    def report(self, sequences: abc.Sequence[Sequence]) -> Outputs:
        """The news of each of their requests, and the usage of those that are over. One that was
        over before a step under way has ended has said all."""
        outputs: Outputs = []
        for state in dict.fromkeys([sequence.request for sequence in sequences]):
            if self._by_id.get(state.request_id) is state:
                outputs += self._report(state)
        return outputs

    def end_all(self, status: Status, error: str | None = None) -> Outputs:
        """End every request, whatever state it is in, without a word to the runner."""
        states = list(self._by_id.values())
        self._scheduler.end_all(states, status)
        for state in states:
            state.error = error
        return [output for state in states for output in self._report(state)]

    def check_integrity(self) -> None:
        """AssertionError unless every request has a sequence that runs or waits."""
        assert not any(state.is_finished for state in self._by_id.values())
        alive = sum(len(state.alive) for state in self._by_id.values())
        assert alive == self._scheduler.num_running + self._scheduler.num_waiting

    def _end(self, state: RequestState, status: Status) -> None:
        """End every sequence of a request that has not ended."""
        for sequence in state.alive:
            self._scheduler.finish(sequence, status)

    def _report(self, state: RequestState) -> Outputs:
        output = take_output(state)
        outputs = [] if output is None else [output]
        if state.is_finished:
            del self._by_id[state.request_id]
            self._adapters.give_back(state.adapter)
            self._telemetry.note(state, "finish request")
            usage = self._telemetry.close(state, state.worst_end)
            usage = final_usage(state, self._scheduler.slots, usage)
            outputs.append(RequestStreamOutput.usage(state.request_id, usage))
            state.sequences.clear()  # they know it too, and a cycle is not freed at once
        return outputs
