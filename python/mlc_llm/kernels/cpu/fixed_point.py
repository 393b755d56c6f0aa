"""Products with fixed-point weights: the sum over a quant block is exact.

    if m < least_gemm_rows:   GEMV on vectors (`fixed_point_gemv.py`)
    else:                     GEMM on AMX tiles (`amx_exact.py`)

X  int32 [m, row_width(k)]             quantised activations (`quant_blocks.py`)
W  int32 [n/32, k/group + 1, stride]   packed weights (`backends/cpu/formats.py`)
Y  float32 [m, n]                      the result

A weight is q * s (minus an offset, or plus a minimum), whole numbers in units of its row. An
activation is a whole number of 16 bits in units of its quant block. So the sum over a quant block
does not depend on the order, and both ways give the very same bits, each where it is faster.
"""

from __future__ import annotations

import tvm
from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.amx_exact import ExactProduct
from mlc_llm.kernels.cpu.amx_pipeline import Pipeline
from mlc_llm.kernels.cpu.fixed_point_gemv import FixedPointGemv
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.quant_blocks import row_width
from mlc_llm.kernels.cpu.vectors import SCHEDULED

LARGE = 2**21
"""Weights of a matrix that is large enough to hide what AMX tiles cost at its start."""


def least_gemm_rows(n: int, k: int) -> int:
    """Rows from which on AMX tiles are faster, though some rows of the first tile are empty."""
    return 8 if n * k >= LARGE else 10


def fixed_point_matmul(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool
) -> tvm.tirx.PrimFunc:
    """Kernel as `matmul.matmul` describes it."""
    gemv = FixedPointGemv(n, k, fmt, isa, accumulate)
    gemm = Pipeline(n, ExactProduct(k, fmt, accumulate, n // BLOCK))

    @T.prim_func(private=True, s_tir=True)
    def fixed_point_product(
        x: T.handle, W: T.Buffer((n // BLOCK, k // fmt.group + 1, fmt.stride), "int32"), y: T.handle
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        X = T.match_buffer(x, (m, row_width(k)), "int32")
        Y = T.match_buffer(y, (m, n), "float32")
        with T.sblock("root"):
            if m < least_gemm_rows(n, k):
                for block in T.parallel(gemv.apart):
                    align_stack()
                    gemv.multiply(X, W, Y, block, m)
            else:
                gemm.multiply(X, W, Y, m)

    return fixed_point_product
