"""The state of a head, in registers of a block of threads (`scans.py`, `wkv.py`).

A state has `head_dim` vectors of `size` numbers. A warp has every `WARPS`-th of these vectors, and
a thread of it every 32nd number of each.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.kernels.cuda.threads import WARP
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

WARPS = 8


@record()
class ScanShape:
    """heads: of the state, each `head_dim` vectors of `size` numbers."""

    heads: int
    head_dim: int
    size: int

    @property
    def vectors(self) -> int:
        """Of a warp."""
        return -(-self.head_dim // WARPS)

    @property
    def numbers(self) -> int:
        """Of a vector that a thread has."""
        return -(-self.size // WARP)


def softplus(x: Expr, power: Expr) -> Expr:
    """log(1 + e^x) = max(x, 0) + log1p(e^-|x|). power: e^-|x|; Kahan's way to take log1p."""
    above = T.float32(1) + power
    rest = T.log(above) * power / (above - T.float32(1))
    return T.max(x, T.float32(0)) + T.if_then_else(above == T.float32(1), power, rest)


def sigmoid(x: Expr) -> Expr:
    """The exponent is bounded so that it stays finite."""
    return T.float32(1) / (T.float32(1) + T.exp(T.min(T.float32(0) - x, T.float32(87))))


@record(eq=False)
class HeadState:
    """Statements for the state of a head, in registers of all threads of a block."""

    shape: ScanShape
    rows: Buffer
    state: Buffer
    h: Expr
    lane: Expr
    warp: Expr
    step: Any
    """`find(t)`: what a token has for all vectors. `token(t, p, s, at)`: changes the numbers of the
    vector p, s[at:], and writes its y."""

    @T.inline
    def row(self, row):
        """All tokens of a row."""
        numbers = T.meta_var(self.shape.numbers)
        s = T.alloc_buffer((self.shape.vectors * numbers,), "float32", scope="local")
        for v in T.unroll(self.shape.vectors):
            for i in T.unroll(numbers):
                s[v * numbers + i] = T.float32(0)
                if self.is_there(v, i):
                    s[v * numbers + i] = self.state[
                        self.rows[row, 2], self.h, v * WARPS + self.warp, i * WARP + self.lane
                    ]
        for i in T.serial(self.rows[row, 1]):
            t: T.let[T.int32] = self.rows[row, 0] + i
            self.step.find(t)
            for v in T.unroll(self.shape.vectors):
                if v * WARPS + self.warp < self.shape.head_dim:
                    self.step.token(t, v * WARPS + self.warp, s, v * numbers)
        for v in T.unroll(self.shape.vectors):
            for i in T.unroll(numbers):
                if self.is_there(v, i):
                    self.state[
                        self.rows[row, 3], self.h, v * WARPS + self.warp, i * WARP + self.lane
                    ] = s[v * numbers + i]

    def is_there(self, v: Index, i: Index) -> Expr:
        """Whether the thread has number i of vector v."""
        return T.And(
            v * WARPS + self.warp < self.shape.head_dim, i * WARP + self.lane < self.shape.size
        )
