"""What `attention` leaves to do in small steps: the shares of a row become one."""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.attention_sizes import FEW, LOG2E, LOWEST, SHARES, SPLIT, STATE, UNIT
from mlc_llm.kernels.cuda.threads import SCHEDULED, block_size

_FMA = "fma.rn.f32"


@cache
def join(heads: int, head_dim: int, has_sinks: bool = False) -> PrimFunc:
    """Kernel of (place, sinks, shares, out): what `attention` leaves to do in small steps."""
    threads = block_size(head_dim)
    turns = -(-head_dim // threads)

    @T.prim_func(private=True)
    def join_shares(place: T.handle, sinks: T.handle, shares: T.handle, out: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        few = T.int32()
        AT = T.match_buffer(place, (m,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        PART = T.match_buffer(shares, (few, heads, SHARES, STATE + head_dim), "float32")
        O = T.match_buffer(out, (m, heads * head_dim), "float32")
        T.device_entry()
        row, h = T.cta_id([few, heads])
        thread = T.thread_id([threads])
        state = T.alloc_buffer((STATE,), "float32", scope="local")
        sums = T.alloc_buffer((turns,), "float32", scope="local")
        factors = T.alloc_buffer((3,), "float32", scope="local")
        if m <= FEW:
            state[0] = T.float32(LOWEST)
            state[1] = T.float32(0)
            if has_sinks:
                state[0] = SINKS[h] * T.float32(LOG2E)
                state[1] = T.float32(UNIT)
            for i in T.unroll(turns):
                sums[i] = T.float32(0)
            for share in T.serial(T.min(AT[row] // SPLIT + 1, SHARES)):
                # As `Tile.fold`.
                factors[2] = T.max(state[0], PART[row, h, share, 0])
                factors[0] = T.exp2(state[0] - factors[2])
                factors[1] = T.exp2(PART[row, h, share, 0] - factors[2])
                state[0] = factors[2]
                T.ptx[_FMA](state[1], state[1], factors[0], PART[row, h, share, 1] * factors[1])
                for i in T.unroll(turns):
                    if i * threads + thread < head_dim:
                        T.ptx[_FMA](
                            *(sums[i], sums[i], factors[0]),
                            PART[row, h, share, STATE + i * threads + thread] * factors[1],
                        )
            for i in T.unroll(turns):
                if i * threads + thread < head_dim:
                    O[row, h * head_dim + i * threads + thread] = sums[i] / state[1]

    return without(join_shares, *(() if has_sinks else ("SINKS",)))
