"""Norms beside a gate, of parts of a row. A block for each part of each row:

    gate first    v = v * silu(z);  v = v / sqrt(mean(v^2) + eps) * weight of the part
    norm first    v = v / sqrt(mean(v^2) + eps) * weight * silu(z), the weights being the same for
                  all parts

z         float32 [m, columns], from `start` on
weight    float32 [parts, width], or [width] if the norm is first
v         float32 [m, parts * width], changed in place
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_size, block_sum, grid


@cache
def gated_norm(
    parts: int, width: int, columns: int, start: int, eps: float, *, gate_first: bool
) -> PrimFunc:
    """Kernel of (z, weight, v)."""
    threads = block_size(width)
    turns, warps = -(-width // threads), threads // WARP
    shape = (parts, width) if gate_first else (width,)

    @T.prim_func(private=True)
    def norm_parts(z: T.handle, weight: T.handle, v: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        Z = T.match_buffer(z, (m, columns), "float32")
        N = T.match_buffer(weight, shape, "float32")
        V = T.match_buffer(v, (m, parts * width), "float32")
        T.device_entry()
        row, part = T.cta_id([grid(m), parts])
        thread = T.thread_id([threads])
        x = T.alloc_buffer((turns,), "float32", scope="local")
        gate = T.alloc_buffer((turns,), "float32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((warps,), "float32", scope="shared")
        if row < m:
            total[0] = T.float32(0)
            for i in T.unroll(turns):
                x[i] = T.float32(0)
                if i * threads + thread < width:
                    x[i] = V[row, part * width + i * threads + thread]
                    gate[i] = Z[row, start + part * width + i * threads + thread]
                    gate[i] = gate[i] / (
                        T.float32(1) + T.exp(T.min(T.float32(0) - gate[i], T.float32(87)))
                    )
                    if gate_first:
                        x[i] = x[i] * gate[i]
                total[0] = total[0] + x[i] * x[i]
            block_sum(total, thread, warps, scratch)
            total[0] = T.float32(1) / T.sqrt(total[0] / T.float32(width) + T.float32(eps))
            for i in T.unroll(turns):
                if i * threads + thread < width:
                    if gate_first:
                        x[i] = x[i] * total[0] * N[part, i * threads + thread]
                    else:
                        x[i] = x[i] * total[0] * N[i * threads + thread] * gate[i]
                    V[row, part * width + i * threads + thread] = x[i]

    return norm_parts
