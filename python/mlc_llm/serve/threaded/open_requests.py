"""The requests of a threaded engine that have not ended yet."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from mlc_llm.errors import InvalidField
from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.metrics import zero_usage_json
from mlc_llm.serve.threaded.outbox import Outputs


@dataclass(eq=False)
class OpenRequest:
    """A request that has not ended. A later request with the same id gets a new object."""

    request_id: str
    open_sequences: list[bool]
    """For each of the `n` sequences: True until its finish reason was sent."""
    is_accepted: bool = False
    """True once the engine's thread has the request. Before that, a caller's thread prepares it, or
    it waits in the inbox."""


class OpenRequests:
    """All open requests by id. It makes sure that each gets exactly one end, whatever fails.

    Callers' threads and the engine's thread use it.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._by_id: dict[str, OpenRequest] = {}

    def add(self, request_id: str, n: int) -> OpenRequest:
        """A new open request with `n` sequences. Raises `InvalidField` if the id is in use."""
        with self._lock:
            if request_id in self._by_id:
                raise InvalidField("request_id", request_id, "it names a request that runs")
            request = self._by_id[request_id] = OpenRequest(request_id, [True] * n)
            return request

    def find(self, request_id: str) -> OpenRequest | None:
        """The open request that has this id now."""
        return self._by_id.get(request_id)

    def remove(self, request: OpenRequest) -> bool:
        """Undo `add`. Returns False if the request has ended already."""
        with self._lock:
            is_open = self.find(request.request_id) is request
            if is_open:
                del self._by_id[request.request_id]
            return is_open

    def accept(self, request: OpenRequest) -> bool:
        """From now on `filter` and `end_accepted` include this request. Returns False if the
        request has ended already."""
        with self._lock:
            request.is_accepted = self.find(request.request_id) is request
            return request.is_accepted

    def filter(self, outputs: Outputs) -> Outputs:
        """Record what the outputs say, and drop outputs of requests that have ended."""
        with self._lock:
            return [output for output in outputs if self._record(output)]

    def end(self, request: OpenRequest, reason: FinishReason, error: str | None = None) -> Outputs:
        """End a request that nothing else ends. Returns its last outputs: a finish reason for its
        open sequences, and a usage item. Returns nothing if the request has ended already."""
        if not self.remove(request):
            return []
        return _last_outputs(request, reason, error)

    def end_accepted(self, reason: FinishReason, error: str | None = None) -> Outputs:
        """End every request that the engine's thread has. Returns their last outputs."""
        with self._lock:
            accepted = [request for request in self._by_id.values() if request.is_accepted]
            return [output for one in accepted for output in self.end(one, reason, error)]

    def _record(self, output: RequestStreamOutput) -> bool:
        """Whether the output belongs to a request that is open."""
        request = self._by_id.get(output.request_id)
        if request is None or not request.is_accepted:
            return False
        if output.request_final_usage_json_str is not None:
            del self._by_id[output.request_id]
            return True
        for i, reason in enumerate(output.group_finish_reason):
            request.open_sequences[i] = request.open_sequences[i] and reason is None
        return True


def _last_outputs(request: OpenRequest, reason: FinishReason, error: str | None) -> Outputs:
    usage = RequestStreamOutput.usage(request.request_id, zero_usage_json())
    if not any(request.open_sequences):
        return [usage]
    reasons = [reason if is_open else None for is_open in request.open_sequences]
    no_tokens: list[list[int]] = [[] for _ in reasons]
    end = RequestStreamOutput(request.request_id, no_tokens, None, reasons, error=error)
    return [end, usage]
