"""Rows of sequences that keep a state, and in which order they may be computed.

A row reads a slot and writes another one (`state_rows` in `library/signatures.py`). Rows come in
order: one may read the slot that an earlier one has written, or write one that an earlier one has
read. Such rows are computed by one block, one after the other; all others have a block each. (Rows
that write the same slot, which nobody reads, fill up a step: what they write means nothing.)
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cuda.threads import WARP

READ, WRITTEN = 2, 3
"""Where a row has its slots."""


@T.inline
def meets_others(R, count, row, lane, found):
    """found[0]: 1 if another row reads what this one writes, or writes what it reads."""
    found[0] = T.float32(0)
    for part in T.serial(T.ceildiv(count, WARP)):
        other: T.let[T.int32] = part * WARP + lane
        if T.And(other < count, T.Not(other == row)):
            if T.Or(R[other, WRITTEN] == R[row, READ], R[other, READ] == R[row, WRITTEN]):
                found[0] = T.float32(1)
    found[0] = T.cuda.warp_max(found[0])


@T.inline
def each_row(compute, R, count, row, lane):
    """Calls `compute.row(row)` for the rows of the block that stands for `row`: its own one, none,
    or all that meet others if it is the first of these."""
    found = T.alloc_buffer((1,), "float32", scope="local")
    before = T.alloc_buffer((1,), "int32", scope="local")
    meets_others(R, count, row, lane, found)
    if found[0] == T.float32(0):
        compute.row(row)
    else:
        before[0] = 0
        for other in T.serial(row):
            meets_others(R, count, other, lane, found)
            if found[0] > T.float32(0):
                before[0] = 1
        if before[0] == 0:
            for later in T.serial(count - row):
                meets_others(R, count, row + later, lane, found)
                if found[0] > T.float32(0):
                    compute.row(row + later)
