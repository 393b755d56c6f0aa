"""A gate with one factor a token: that of a network that every token goes through.

    in parallel, for each row:
        v = what the kind makes of X[row]              `row_kinds.py`
        total = sum of v * gate, in a fixed order
        Y[row] *= 1 / (1 + e^-total)

X, weight and bias: see `row_kinds.py`; most kinds have no bias
gate    float32 [k]
Y       float32 [m, width], changed in place
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.input_kinds import find_statistics, load
from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, exp2, fsplat, lanes_at, reduce_sum, splat
from mlc_llm.kernels.row_kinds import KINDS, Given, input_width, weight_shape
from mlc_llm.kernels.types import Expr

L = 8


def _sigmoid(x: Expr, lanes: int) -> Expr:
    """1 / (1 + e^-x); the exponent is bounded so that the denominator stays finite. A NaN stays."""
    bounded = T.min(fsplat(0.0, lanes) - x, fsplat(87.0, lanes))
    power = exp2(bounded * fsplat(LOG2E, lanes), lanes)
    sigmoid = fsplat(1.0, lanes) / (fsplat(1.0, lanes) + power)
    return T.Select(T.abs(x) <= splat(T.infinity("float32"), lanes), sigmoid, x)


@cache
def token_gate(kind: str, k: int, width: int, eps: float = 0.0) -> PrimFunc:
    """Kernel of (X, weight, bias, gate, Y). k and width are multiples of 8; eps: of a norm."""
    columns = input_width(kind, k)

    @T.inline
    def one_row(given, gate, Y, row):
        """Multiplies a row."""
        inv = T.alloc_buffer((KINDS[kind].statistics,), "float32")
        total = T.alloc_buffer((L,), "float32")
        factor = T.alloc_buffer((L,), "float32")
        find_statistics(kind, given.x, row, k, eps, inv)
        total[lanes_at(0, L)] = fsplat(0.0, L)
        for i in T.serial(k // L):
            total[lanes_at(0, L)] = (
                total[lanes_at(0, L)]
                + load(kind, given, row, i * L, k, inv, L) * gate[lanes_at(i * L, L)]
            )
        factor[lanes_at(0, L)] = _sigmoid(splat(reduce_sum(total, L), L), L)
        for i in T.serial(width // L):
            Y[row, lanes_at(i * L, L)] = Y[row, lanes_at(i * L, L)] * factor[lanes_at(0, L)]

    @T.prim_func(private=True, s_tir=True)
    def gate_rows(x: T.handle, weight: T.handle, bias: T.handle, gate: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, columns), "float32")
        N = T.match_buffer(weight, weight_shape(kind, k, m), "float32")
        BIAS = T.match_buffer(bias, (k,), "float32")
        G = T.match_buffer(gate, (k,), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            each_row(one_row, m, Given(X, N, BIAS), G, Y)

    return without(gate_rows, *KINDS[kind].unread)
