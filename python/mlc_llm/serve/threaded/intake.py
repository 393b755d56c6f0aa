"""How requests come in: each is opened, made ready on the thread of whoever asks, and queued.

It has no lock of its own: `OpenRequests` and the inbox have theirs. It refers to no core, so the
engine can be unloaded while a request is made ready; the engine's thread sees that, and refuses it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from mlc_llm.errors import EngineDead
from mlc_llm.serve.core.admission import Admission
from mlc_llm.serve.engine_calls import Inside
from mlc_llm.serve.request import Request
from mlc_llm.serve.threaded.inbox import Arrival, Instruction, InstructionKind
from mlc_llm.serve.threaded.open_requests import OpenRequest, OpenRequests

_log = logging.getLogger(__name__)


class Intake:
    """The way of a request to the engine's thread, and of its abort."""

    def __init__(
        self,
        open_requests: OpenRequests,
        put: Callable[[Instruction], None],
        admission: Callable[[], tuple[Admission, int] | None],
    ) -> None:
        """put: queues an instruction. admission: what prepares requests for the model that is
        loaded now, and its `load_id`; None without a model."""
        self._open_requests, self._put, self._admission = open_requests, put, admission

    def make_ready(
        self, request_id: str, n: int, make: Callable[[], Request], *, raises: bool = False
    ) -> Arrival | None:
        """Open a request and do all of its work that needs no engine. None: it was aborted
        meanwhile. Raises as `ThreadedEngine.make_and_add`."""
        open_request = self._open_requests.add(request_id, n)
        try:
            with Inside():
                arrival = self._prepared(make(), open_request)
                if raises and arrival.prepared is not None and arrival.prepared.error is not None:
                    raise arrival.prepared.error
                return arrival
        except BaseException as error:
            self._undo(open_request, error)
            return None

    def add_ready(self, arrival: Arrival) -> None:
        """Queue a request that `make_ready` has made."""
        try:
            with Inside():
                self._put(Instruction(InstructionKind.kAddRequest, arrival))
        except BaseException as error:
            self._undo(arrival.open_request, error)

    def abort(self, request_id: str) -> None:
        """End a request, wherever it is on its way. Unknown ids are ignored."""
        request = self._open_requests.find(request_id)
        try:
            self._put(Instruction(InstructionKind.kAbortRequest, request))
        except EngineDead:
            _log.debug("request %s ended with the engine", request_id)

    def _undo(self, open_request: OpenRequest, error: BaseException) -> None:
        """Forget a request that could not be added. Raises the error, unless it was aborted."""
        is_open = self._open_requests.remove(open_request)
        if is_open or not isinstance(error, Exception):
            raise error

    def _prepared(self, request: Request, open_request: OpenRequest) -> Arrival:
        """The request, with all the work done that needs no engine thread."""
        found = self._admission()
        if found is None or request.is_special:
            return Arrival(request, open_request)
        admission, load_id = found
        if request.load_id not in (None, load_id):
            return Arrival(request, open_request)
        request = replace(request, load_id=load_id)
        try:
            return Arrival(request, open_request, admission.prepare(request))
        except Exception:  # a bug of ours: the engine's thread meets it again and reports it
            return Arrival(request, open_request)
