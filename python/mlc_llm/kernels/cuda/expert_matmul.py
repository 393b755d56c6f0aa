"""Products of expert rows with the matrices of their experts.

    a block for 32 rows of a matrix and a chunk of expert rows of its expert
        as a block of few rows in `matmul.py`, and so with the same bits

chunks    int32 [c, CHUNK], as `expert_routing.py` sorts them
tokens    int32 [rows]: the row of x that each expert row has; if there is none, it is the same one
x         uint32 [m, row_words(k)], or [rows, row_words(k)]
W         uint32 [experts, n / 32, k / 32, stride]
y         float32 [rows, width]: the product goes into n columns from `first` on
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import BLOCK, WeightFormat, tensor_shape
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.expert_routing import CHUNK
from mlc_llm.kernels.cuda.matmul import TURNS, WARPS, FewRows
from mlc_llm.kernels.cuda.matmul_tiles import GlobalRows
from mlc_llm.kernels.cuda.planes import row_words
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, grid
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.record import record


@record()
class ExpertShape:
    """Matrices [n, k] of so many experts."""

    experts: int
    n: int
    k: int
    fmt: WeightFormat


@record(eq=False)
class _Matrix:
    """The matrix of an expert."""

    stack: Buffer
    expert: Expr

    def __getitem__(self, index: tuple[Expr, ...]) -> Expr:
        at = (self.expert, *index)
        return self.stack[at]


@cache
def expert_matmul(
    shape: ExpertShape, width: int, first: int, *, has_tokens: bool, planes: int = 2
) -> PrimFunc:
    """Kernel of (chunks, tokens, x, W, y). planes: of x, as `matmul`."""
    n, k, fmt = shape.n, shape.k, shape.fmt
    packed, dtype = tensor_shape(fmt, n, k)
    few = FewRows(k, fmt, start=first, planes=planes)

    @T.prim_func(private=True)
    def multiply(chunks: T.handle, tokens: T.handle, x: T.handle, w: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        c = T.int32()
        m = T.int32()
        rows = T.int32()
        CHUNKS = T.match_buffer(chunks, (c, CHUNK), "int32")
        TOKENS = T.match_buffer(tokens, (rows,), "int32")
        X = T.match_buffer(x, (m, row_words(k)), "uint32")
        W = T.match_buffer(w, (shape.experts, *packed), dtype)
        Y = T.match_buffer(y, (rows, width), "float32")
        T.device_entry()
        T.attr({"tirx.launch_bounds_min_blocks_per_sm": 2})
        block, turn = T.cta_id([n // BLOCK, grid(c)])
        lane, warp = T.thread_id([WARP, WARPS])
        MEM = T.alloc_buffer((few.memory,), "uint32", scope="shared.dyn", align=128)
        acc = T.alloc_buffer((TURNS * 8,), "float32", scope="local")
        if turn < c:
            if CHUNKS[turn, 1] < CHUNKS[turn, 2]:
                given = T.meta_var(
                    GlobalRows(
                        *(X, k, CHUNKS[turn, 1], CHUNKS[turn, 2]),
                        TOKENS if has_tokens else None,
                    )
                )
                few.multiply(given, _Matrix(W, CHUNKS[turn, 0]), block, lane, warp, acc)
                few.share(MEM, given, lane, warp, acc)
                T.cuda.cta_sync()
                few.store(X, Y, MEM, block, given, warp * WARP + lane)

    return multiply if has_tokens else without(multiply, "TOKENS")
