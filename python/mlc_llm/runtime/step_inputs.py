"""The inputs of a step, from plain numbers to what compiled code is called with."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import tvm_ffi

from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.runtime.batch import KNOWN, BatchRow
from mlc_llm.runtime.decode_rows import DecodeRows
from mlc_llm.runtime.kv_cache import Placements

if TYPE_CHECKING:
    from mlc_llm.backends.device import Device, DeviceTensor, Table
    from mlc_llm.runtime.image_rows import StepImages

Numbers: TypeAlias = "array[int]"
SINGLE = 5
"""Tables of a step that all groups of layers share."""


class Taken(NamedTuple):
    """Tokens that the step before has chosen, and that may not be known yet."""

    source: DeviceTensor
    """int32: what it has chosen."""
    runs: Sequence[tuple[int, int, int]]
    """First one, the token of this step that it becomes, and how many lie side by side."""

    def put(self, device: Device, tokens: DeviceTensor) -> None:
        """Into the tokens of this step."""
        for first, at, count in self.runs:
            device.move(self.source, first, tokens, at, count)

    @classmethod
    def of(cls, source: DeviceTensor, rows: Sequence[BatchRow]) -> Taken:
        """source: of a step whose rows have one sampling each."""
        if type(rows) is DecodeRows and rows.chosen_by is rows.same.indices:
            return cls(source, [(0, 0, len(rows))])
        runs: list[tuple[int, int, int]] = []
        at = 0
        for row in rows:
            if row.chosen_by != KNOWN:
                first, start, count = runs[-1] if runs else (-1, -1, 0)
                if (row.chosen_by, at) == (first + count, start + count):
                    runs[-1] = first, start, count + 1
                else:
                    runs.append((row.chosen_by, at, 1))
            at += len(row.token_ids)
        return cls(source, runs)


class StepNumbers(NamedTuple):
    """What a step is about."""

    tokens: Numbers
    placed: Placements
    logit_rows: Numbers
    """The tokens behind which logits are wanted, by index."""
    fast_tokens: int
    """How many of the first tokens are computed less exactly."""
    adapters: Numbers | None
    """The slot of each token's adapter; None for a library without adapters."""
    images: StepImages | None = None
    """None for a library without images."""
    taken: Taken | None = None

    @property
    def image_tables(self) -> Sequence[Table]:
        return () if self.images is None else self.images.tables


def step_tables(numbers: StepNumbers, position: Numbers, sink_position: Numbers) -> list[Table]:
    """The tables of `forward`, in the order that `StepInputs.of` knows.

    position, sink_position: rows of rotations for tokens and for sinks.
    """
    fast, placed = array("i", (numbers.fast_tokens,)), numbers.placed
    shared = (numbers.tokens, position, sink_position, fast, numbers.logit_rows)
    tables: list[Table] = [(one, 0) for one in shared]
    for slots, places, blocks, page_ids in placed.groups:
        tables += ((slots, 0), (places, 0), (blocks, 3), (page_ids, 0))
    if placed.previous is not None:
        tables.append((placed.previous, 0))
    if placed.state_rows is not None:
        tables.append((placed.state_rows, STATE_ROW))
    if numbers.adapters is not None:
        tables.append((numbers.adapters, 0))
    return [*tables, *numbers.image_tables]


class StepInputs(NamedTuple):
    """`forward`'s inputs for tables of certain tensors, as the FFI wants them."""

    tensors: list[DeviceTensor]
    """Of all tables. While a device gives the same ones, so is everything here."""
    single: Sequence[DeviceTensor]
    """Token ids, rows of rotations, and what else has one tensor."""
    by_group: Sequence[tvm_ffi.Array]
    """Slots, places, query blocks and page ids: of each group of layers."""
    more: Sequence[DeviceTensor | tvm_ffi.Array]
    """Slots of previous tokens, if a draft head reads them; rows of states and slots of adapters,
    if there are some; and the tables of images."""
    rest: list[DeviceTensor]
    """Of tables that are not for `forward`."""

    @classmethod
    def of(cls, tensors: list[DeviceTensor], numbers: StepNumbers) -> StepInputs:
        """tensors: of `step_tables` and of others behind them."""
        placed, images = numbers.placed, len(numbers.image_tables)
        last = SINGLE + 4 * len(placed.groups)
        by_group = [tvm_ffi.Array(tensors[SINGLE + i : last : 4]) for i in range(4)]
        tables = (placed.previous, placed.state_rows, numbers.adapters)
        end = last + sum(table is not None for table in tables)
        more: list[DeviceTensor | tvm_ffi.Array] = [*tensors[last:end]]
        if images:
            more.append(tensors[end])
        if images > 1:
            more.append(tvm_ffi.Array(tensors[end + 1 : end + images]))
        return cls(tensors, tensors[:SINGLE], by_group, more, tensors[end + images :])
