"""What rank 0 says to the others: plain numbers over a socket.

Rank 0 alone knows sequences and page tables. Of a step the others get the tables that compiled code
reads; then forks, rollbacks, the prefix cache and aborts cannot differ between ranks.
"""

from __future__ import annotations

import json
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from mlc_llm.runtime.kv_cache import Placements
from mlc_llm.runtime.steady_rows import Placement
from mlc_llm.runtime.step_inputs import StepNumbers

Numbers: TypeAlias = "array[int]"
STEP, COPY = 0, 1
"""Kinds of messages."""
TABLES = 4
"""Of a group of layers: slots, places, query blocks, page ids."""
_HEAD = struct.Struct("<Q")


def step_message(numbers: StepNumbers) -> bytes:
    """A step. Nobody but rank 0 makes logits."""
    tokens, placed, _, fast_tokens, adapters, images, taken = numbers
    assert adapters is None and images is None, "ranks have no adapters and no images"
    assert taken is None, "ranks start no step early"
    assert placed.state_rows is None, "ranks have no states"
    tables = [table for group in placed.groups for table in group]
    return _written([array("i", (STEP, fast_tokens)), tokens, placed.position, *tables])


def step_of(tables: Sequence[Numbers]) -> StepNumbers:
    """What `step_message` was made of, without logits."""
    (_, fast), tokens, position, *rest = tables
    groups = [Placement(*rest[i : i + TABLES]) for i in range(0, len(rest), TABLES)]
    return StepNumbers(tokens, Placements(position, groups, None), array("i"), fast, None)


def copy_message(group: int, source: Sequence[int], target: Sequence[int]) -> bytes:
    """Pages of a group of layers are copied."""
    return _written([array("i", (COPY, group)), array("i", source), array("i", target)])


def _written(tables: Sequence[Numbers]) -> bytes:
    sizes = array("i", (len(tables), *map(len, tables)))
    body = b"".join(one.tobytes() for one in (sizes, *tables))
    return _HEAD.pack(len(body)) + body


def tables_of(body: bytes) -> list[Numbers]:
    """The tables of a message."""
    numbers = array("i")
    numbers.frombytes(body)
    count, found = numbers[0], []
    start = count + 1
    for size in numbers[1:start]:
        found.append(numbers[start : start + size])
        start += size
    assert start == len(numbers), "a message of another version"
    return found


def json_message(value: Mapping[str, object]) -> bytes:
    """For what is said once."""
    body = json.dumps(value).encode()
    return _HEAD.pack(len(body)) + body


def received(link: socket.socket) -> bytes | None:
    """The next message; None at the end. Raises TimeoutError if nothing comes in the time of the
    socket, and OSError."""
    head = _exactly(link, _HEAD.size, is_begun=False)
    if head is None:
        return None
    return _exactly(link, _HEAD.unpack(head)[0], is_begun=True)


def _exactly(link: socket.socket, count: int, *, is_begun: bool) -> bytes | None:
    """So many bytes; None if the other end is closed. A message that has begun is waited for."""
    found = bytearray()
    while len(found) < count:
        try:
            more = link.recv(count - len(found))
        except TimeoutError:
            if is_begun or found:
                continue
            raise
        if not more:
            return None
        found += more
    return bytes(found)
