"""The way of outputs from a replica to an ingress: one message a step for all requests together.

Ray carries each request, its end and its abort. Its outputs would cost Ray an object each, so they
come through a socket of the ingress instead (ZeroMQ, msgpack). Whoever does not know the key of the
ingress, which only replicas get, sends nothing that is read.

Needs `pip install mlc-llm[ray]`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any, cast

import msgspec
import zmq
import zmq.asyncio

from mlc_llm.serve.data import FinishReason, RequestStreamOutput

MOST_INGRESSES = 64
"""Sockets that a replica keeps open."""
LINGER_MS = 1000
KEY_BYTES = 16

Outputs = list[RequestStreamOutput]

_log = logging.getLogger(__name__)


class _Row(msgspec.Struct, array_like=True):  # type: ignore[misc, call-arg]  # has no types
    """A `RequestStreamOutput`, with its types checked."""

    request_id: str
    tokens: list[list[int]]
    logprobs: list[list[str]] | None
    reasons: list[str | None]
    usage: str | None
    prefixes: list[str]
    cut: list[int]
    error: str | None
    stops: list[str | None]
    prompt_logprobs: list[str] | None
    embedding: list[float] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[_Row]).decode


class Sender:
    """The replica's side. One thread uses it."""

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._sockets: OrderedDict[str, Any] = OrderedDict()

    def send(self, address: str, outputs: Outputs) -> None:
        """address: of a `Receiver`. It never waits."""
        endpoint, _, key = address.rpartition("#")
        socket = self._sockets.get(address) or self._connected(address, endpoint)
        self._sockets.move_to_end(address)
        socket.send_multipart([key.encode(), _encode([_row(one) for one in outputs])])

    def _connected(self, address: str, endpoint: str) -> Any:
        while len(self._sockets) >= MOST_INGRESSES:
            _, oldest = self._sockets.popitem(last=False)
            oldest.close(linger=LINGER_MS)
        socket = self._sockets[address] = self._context.socket(zmq.PUSH)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.connect(endpoint)
        return socket

    def close(self) -> None:
        """What was sent goes out first, within a second."""
        self._context.destroy(linger=LINGER_MS)


class Receiver:
    """The ingress's side, on one event loop."""

    def __init__(self, host: str) -> None:
        """host: an address of this node that replicas reach."""
        self._key = secrets.token_hex(KEY_BYTES)
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.address = f"tcp://{host}:{port}#{self._key}"
        """For `Sender.send`."""
        self._queues: dict[str, asyncio.Queue[Outputs | BaseException | None]] = {}
        self._task = asyncio.ensure_future(self._read())

    def open(self, request_id: str) -> asyncio.Queue[Outputs | BaseException | None]:
        """What comes for this request, until it is closed."""
        queue = self._queues[request_id] = asyncio.Queue()
        return queue

    def close_request(self, request_id: str) -> None:
        """Nothing is wanted any more."""
        self._queues.pop(request_id, None)

    def close(self) -> None:
        """Read no more."""
        self._task.cancel()
        self._context.destroy(linger=0)

    async def _read(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            if len(frames) != 2 or not hmac.compare_digest(frames[0], self._key.encode()):
                _log.warning("a message from a stranger was dropped")
                continue
            try:
                rows = _decode(frames[1])
                outputs = [_output(row) for row in rows]
            except (msgspec.MsgspecError, AssertionError) as error:
                _log.warning("a message that cannot be read was dropped: %s", error)
                continue
            by_request: dict[str, Outputs] = {}
            for one in outputs:
                by_request.setdefault(one.request_id, []).append(one)
            for request_id, own in by_request.items():
                queue = self._queues.get(request_id)
                if queue is not None:
                    queue.put_nowait(own)


def _row(one: RequestStreamOutput) -> Sequence[object]:
    vector = one.embedding
    return (
        one.request_id,
        one.group_delta_token_ids,
        one.group_delta_logprob_json_strs,
        one.group_finish_reason,
        one.request_final_usage_json_str,
        one.group_extra_prefix_string,
        one.group_cut_bytes,
        one.error,
        one.group_stop_strs,
        one.prompt_logprob_json_strs,
        None if vector is None else [float(number) for number in vector],
    )


def _output(row: _Row) -> RequestStreamOutput:
    """Raises `AssertionError` for groups that do not belong together."""
    return RequestStreamOutput(
        row.request_id,
        row.tokens,
        row.logprobs,
        cast("list[FinishReason | None]", row.reasons),
        row.usage,
        row.prefixes,
        row.cut,
        row.error,
        row.stops,
        row.prompt_logprobs,
        row.embedding,
    )
