"""What kernels of a GPU share: warps, and numbers of all threads of a block made one."""

from __future__ import annotations

from tvm.script import tirx as T

WARP = 32
"""Threads that run together."""
QUAD = 4
"""Numbers that a thread reads at once, where it can."""
MOST_THREADS = 512
SCHEDULED = {"tirx.noalias": True, "op_pattern": 8, "tirx.is_scheduled": True}
"""Attributes of every kernel: its threads are final, and no fusion may touch them."""


def block_size(work: int) -> int:
    """Threads of a block for so many pieces of work: whole warps, up to `MOST_THREADS`."""
    return min(MOST_THREADS, -(-work // WARP) * WARP)


@T.inline
def block_sum(x, thread, warps, scratch):
    """x[0]: its sum over all threads of the block, the same in each, in a fixed order.

    thread: the number of this one. scratch: float32 [warps], shared. All threads have to come here.
    """
    x[0] = T.cuda.warp_sum(x[0])
    if warps > 1:
        if thread % WARP == 0:
            scratch[thread // WARP] = x[0]
        T.cuda.cta_sync()
        x[0] = scratch[0]
        for i in T.unroll(warps - 1):
            x[0] = x[0] + scratch[i + 1]
        T.cuda.cta_sync()


@T.inline
def block_max(x, thread, warps, scratch):
    """x[0]: the largest of all threads of the block; else as `block_sum`."""
    x[0] = T.cuda.warp_max(x[0])
    if warps > 1:
        if thread % WARP == 0:
            scratch[thread // WARP] = x[0]
        T.cuda.cta_sync()
        x[0] = scratch[0]
        for i in T.unroll(warps - 1):
            x[0] = T.max(x[0], scratch[i + 1])
        T.cuda.cta_sync()
