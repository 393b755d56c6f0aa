"""The way out of the engine's thread: outputs, and which requests are owed some."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass, field

from mlc_llm.errors import InvalidField
from mlc_llm.serve.data import FinishReason, RequestStreamOutput
from mlc_llm.serve.metrics import zero_usage_json

Outputs = list[RequestStreamOutput]


class Outbox:
    """Outputs that wait for the stream-back loop. It has no limit: a slow reader stops nobody."""

    def __init__(self) -> None:
        # It waits in C: the stream-back loop is woken at every step, while the model has all cores.
        self._queue: queue.SimpleQueue[Outputs | None] = queue.SimpleQueue()
        self._is_over = False

    def put(self, outputs: Outputs) -> None:
        """Append; never waits."""
        if outputs:
            self._queue.put(outputs)

    def close(self) -> None:
        """Nothing comes after this."""
        self._queue.put(None)

    def take(self) -> Outputs | None:
        """Everything there is, once there is something; None when that was all. For one thread."""
        found: Outputs = []
        while not self._is_over and not (found and self._queue.empty()):
            more = self._queue.get()
            self._is_over = more is None
            found += more or []
        return found or None


@dataclass(eq=False)
class Ticket:
    """One request on the roster: another of the same id, later, has another ticket."""

    request_id: str
    open_branches: list[bool]
    is_accepted: bool = field(default=False)
    """The engine's thread has it; before that it is prepared, or waits in the inbox."""


class Roster:
    """The requests that were taken in and have not ended, so that each gets exactly one end
    whatever breaks. Used by callers' threads and the engine's."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tickets: dict[str, Ticket] = {}

    def enter(self, request_id: str, n: int) -> Ticket:
        """Raises `InvalidField` while another request has this id."""
        with self._lock:
            if request_id in self._tickets:
                raise InvalidField("request_id", request_id, "it names a request that runs")
            ticket = self._tickets[request_id] = Ticket(request_id, [True] * n)
            return ticket

    def find(self, request_id: str) -> Ticket | None:
        """Of the request that has this id now."""
        return self._tickets.get(request_id)

    def leave(self, ticket: Ticket) -> bool:
        """Take back `enter`; False when the request has had its end."""
        with self._lock:
            is_here = self._tickets.get(ticket.request_id) is ticket
            if is_here:
                del self._tickets[ticket.request_id]
            return is_here

    def accept(self, ticket: Ticket) -> bool:
        """From now on `filter` and `end_accepted` are about this request too; False when it has
        had its end."""
        with self._lock:
            ticket.is_accepted = self._tickets.get(ticket.request_id) is ticket
            return ticket.is_accepted

    def filter(self, outputs: Outputs) -> Outputs:
        """Note what the outputs say, and leave out those of requests that have had their end."""
        with self._lock:
            return [output for output in outputs if self._note(output)]

    def end(self, ticket: Ticket, reason: FinishReason, error: str | None = None) -> Outputs:
        """The end of a request for which nobody else makes one: what is open of it, and a usage.
        Nothing when it has had its end."""
        if not self.leave(ticket):
            return []
        return _ending(ticket.request_id, ticket.open_branches, reason, error)

    def end_accepted(self, reason: FinishReason, error: str | None = None) -> Outputs:
        """The end of everything that the engine's thread has."""
        with self._lock:
            accepted = [ticket for ticket in self._tickets.values() if ticket.is_accepted]
            return [output for one in accepted for output in self.end(one, reason, error)]

    def _note(self, output: RequestStreamOutput) -> bool:
        ticket = self._tickets.get(output.request_id)
        if ticket is None or not ticket.is_accepted:
            return False
        if output.request_final_usage_json_str is not None:
            del self._tickets[output.request_id]
            return True
        for i, reason in enumerate(output.group_finish_reason):
            ticket.open_branches[i] = ticket.open_branches[i] and reason is None
        return True


def _ending(
    request_id: str, open_branches: list[bool], reason: FinishReason, error: str | None
) -> Outputs:
    usage = RequestStreamOutput.usage(request_id, zero_usage_json())
    if not any(open_branches):
        return [usage]
    reasons = [reason if is_open else None for is_open in open_branches]
    no_tokens: list[list[int]] = [[] for _ in open_branches]
    end = RequestStreamOutput(request_id, no_tokens, None, reasons, error=error)
    return [end, usage]
