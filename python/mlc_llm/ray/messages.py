"""The messages between an ingress and a replica (msgpack), with the types of their fields checked.

A session is what one ingress has with one replica, until it or one of them ends. Both sides number
their messages in it, so that each sees whether one was lost. Needs `pip install mlc-llm[ray]`.
"""

from __future__ import annotations

from typing import cast

import msgspec

from mlc_llm.ray.wire import WireRequest
from mlc_llm.serve.data import FinishReason, RequestStreamOutput

Outputs = list[RequestStreamOutput]


class UnreadableMessage(Exception):
    """It is none of the messages of this file."""


class ToReplica(msgspec.Struct, array_like=True):  # type: ignore[misc, call-arg]  # has no types
    """Requests that begin and those that are aborted."""

    session: str
    number: int
    """From 1 on."""
    begin: list[WireRequest] = []
    abort: list[str] = []
    """Their ids."""
    is_last: bool = False
    """The session ends."""
    now: float = 0.0
    """On the clock of the ingress."""


class FromReplica(msgspec.Struct, array_like=True):  # type: ignore[misc, call-arg]  # has no types
    """Outputs of a step, and what the replica knows of the session."""

    session: str
    number: int
    """From 1 on."""
    heard: int
    """The number of the last message that has come."""
    others: int
    """Requests of other sessions that run here."""
    rows: list[Row] = []
    refused: list[tuple[str, str]] = []
    """Ids of requests that do not begin, and why."""


class Row(msgspec.Struct, array_like=True):  # type: ignore[misc, call-arg]  # has no types
    """A `RequestStreamOutput`."""

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


encode = msgspec.msgpack.Encoder().encode
_to_replica = msgspec.msgpack.Decoder(ToReplica).decode
_from_replica = msgspec.msgpack.Decoder(FromReplica).decode


def read_by_replica(message: bytes) -> ToReplica:
    """Raises `UnreadableMessage`."""
    try:
        return cast(ToReplica, _to_replica(message))
    except msgspec.MsgspecError as error:
        raise UnreadableMessage(str(error)) from error


def read_by_ingress(message: bytes) -> tuple[FromReplica, Outputs]:
    """The message, and the outputs of its rows. Raises `UnreadableMessage`, also for groups that do
    not belong together."""
    try:
        found = cast(FromReplica, _from_replica(message))
        return found, [_output(row) for row in found.rows]
    except (msgspec.MsgspecError, AssertionError) as error:
        raise UnreadableMessage(str(error)) from error


def row_of(one: RequestStreamOutput) -> Row:
    """See `Row`."""
    vector = one.embedding
    return Row(
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


def _output(row: Row) -> RequestStreamOutput:
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
