"""Squares of 16 times 16 numbers of 16 bits, transposed in registers.

    for s in 1, 2, 4, 8:
      for rows a, a + s where bit s of a is 0:
        the elements of row a whose number has bit s, and those of row a + s that lack it, change
        places

One by one, 16 bits take three instructions each to get out of a vector and to their place.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import lanes_at
from mlc_llm.kernels.types import Expr

SIDE = 16
_DTYPE = f"int16x{SIDE}"


def _changed(first: Expr, second: Expr, step: int, is_second: bool) -> Expr:
    """Row a, or row a + step, behind a step."""
    if is_second:
        order = [j + SIDE if j & step else j + step for j in range(SIDE)]
    else:
        order = [j + SIDE - step if j & step else j for j in range(SIDE)]
    return T.Shuffle([first, second], order)


@T.inline
def _change(x, y, step):
    """One step, from x to y."""
    lanes = T.meta_var(lanes_at(0, SIDE))
    for p in T.unroll(SIDE // 2):
        a = T.meta_var(p // step * 2 * step + p % step)
        y[a, lanes] = _changed(x[a, lanes], x[a + step, lanes], step, False)
        y[a + step, lanes] = _changed(x[a, lanes], x[a + step, lanes], step, True)


@T.inline
def transpose(X, column, Y, row):
    """A square of X, float16 [SIDE, columns], from that column on; its columns become the vectors
    of Y at row(0), row(1), ..."""
    x = T.alloc_buffer((SIDE, SIDE), "int16")
    y = T.alloc_buffer((SIDE, SIDE), "int16")
    lanes = T.meta_var(lanes_at(0, SIDE))
    for i in T.unroll(SIDE):
        x[i, lanes] = T.reinterpret(X[i, lanes_at(column, SIDE)], dtype=_DTYPE)
    _change(x, y, 1)
    _change(y, x, 2)
    _change(x, y, 4)
    _change(y, x, 8)
    for j in T.unroll(SIDE):
        Y[row(j)] = T.reinterpret(x[j, lanes], dtype=f"float16x{SIDE}")
