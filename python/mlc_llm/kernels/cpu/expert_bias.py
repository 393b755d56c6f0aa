"""Adds to each row the bias of its expert.

    for expert in experts:                       parallel
      for row in rows of the expert:
        Y[row, first to first + n] += bias[expert]

starts  int32 [experts + 1]     rows starts[e] to starts[e + 1] are those of expert e
bias    float32 [experts, n]
Y       float32 [rows, width]   changed in place
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at

L = 8


@cache
def add_expert_bias(experts: int, n: int, width: int, first: int) -> tvm.tirx.PrimFunc:
    """Kernel of (starts, bias, Y); n is a multiple of 8."""

    @T.prim_func(private=True, s_tir=True)
    def add_biases(
        starts: T.Buffer((experts + 1,), "int32"),
        bias: T.Buffer((experts, n), "float32"),
        y: T.handle,
    ):
        T.func_attr(SCHEDULED)
        rows = T.int32()
        Y = T.match_buffer(y, (rows, width), "float32")
        with T.sblock("root"):
            for e in T.parallel(experts):
                for i in T.serial(starts[e + 1] - starts[e]):
                    for j in T.serial(n // L):
                        Y[starts[e] + i, lanes_at(first + j * L, L)] = (
                            Y[starts[e] + i, lanes_at(first + j * L, L)]
                            + bias[e, lanes_at(j * L, L)]
                        )

    return add_biases
