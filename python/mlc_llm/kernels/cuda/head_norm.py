"""RMS norms of queries and keys (Henry et al. 2020): of single heads, or of all of a token.

    a block for each token and each head of a range:
        head = head / sqrt(mean(head^2) + eps) * weight

All heads of a token together are one long head.

x         float32 [m, width], changed in place
weight    float32 [head_dim]
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, block_sum


@cache
def head_norm(width: int, start: int, heads: int, head_dim: int, eps: float) -> PrimFunc:
    """Kernel arguments: weight, x. The heads lie side by side from column `start` on."""
    threads = block_size(head_dim)
    warps, turns = threads // WARP, -(-head_dim // threads)

    @T.prim_func(private=True)
    def norm_heads(weight: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        N = T.match_buffer(weight, (head_dim,), "float32")
        X = T.match_buffer(x, (m, width), "float32")
        T.device_entry()
        row, h = T.cta_id([m, heads])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((turns,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        total[0] = T.float32(0)
        for i in T.unroll(turns):
            v[i] = T.float32(0)
            if i * threads + thread < head_dim:
                v[i] = X[row, start + h * head_dim + i * threads + thread]
            total[0] = total[0] + v[i] * v[i]
        block_sum(total, thread, warps, scratch)
        total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(head_dim) + T.float32(eps))
        for i in T.unroll(turns):
            if i * threads + thread < head_dim:
                X[row, start + h * head_dim + i * threads + thread] = (
                    v[i] * total[0] * N[i * threads + thread]
                )

    return norm_heads


@cache
def heads_apart(
    width: int, start: int, heads: int, head_dim: int, eps: float | None = None
) -> PrimFunc:
    """Kernel of (x float32 [m, width], y float32 [m, heads * head_dim]): the heads of x from column
    `start` on, normalised without weights unless eps is None."""
    threads = block_size(head_dim)
    warps, turns = threads // WARP, -(-head_dim // threads)

    @T.prim_func(private=True)
    def copy_heads(x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, width), "float32")
        Y = T.match_buffer(y, (m, heads * head_dim), "float32")
        T.device_entry()
        row, h = T.cta_id([m, heads])
        thread = T.thread_id([threads])
        v = T.alloc_buffer((turns,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        total[0] = T.float32(0)
        for i in T.unroll(turns):
            v[i] = T.float32(0)
            if i * threads + thread < head_dim:
                v[i] = X[row, start + h * head_dim + i * threads + thread]
            total[0] = total[0] + v[i] * v[i]
        if eps is not None:
            block_sum(total, thread, warps, scratch)
            total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(head_dim) + T.float32(eps))
            for i in T.unroll(turns):
                v[i] = v[i] * total[0]
        for i in T.unroll(turns):
            if i * threads + thread < head_dim:
                Y[row, h * head_dim + i * threads + thread] = v[i]

    return copy_heads
