"""What kernels of a GPU share: warps, and numbers of all threads of a block made one."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels import tvm_patches
from mlc_llm.kernels.types import Expr

tvm_patches.apply()  # every kernel imports this module

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


def grid(rows: Expr) -> Expr:
    """Blocks for so many rows. CUDA launches no grid of nothing, so a block may have no row."""
    return T.max(rows, 1)


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


@T.inline
def block_first(x, place, thread, warps, scratch):
    """x[0]: the largest of all threads; place[0]: the lowest place of those that have it, which
    are below 2^24."""
    own = T.alloc_buffer((1,), "float32", scope="local")
    own[0] = x[0]
    block_max(x, thread, warps, scratch)
    if own[0] < x[0]:
        place[0] = T.int32(1 << 24)
    own[0] = T.cast(0 - place[0], "float32")
    block_max(own, thread, warps, scratch)
    place[0] = 0 - T.cast(own[0], "int32")
