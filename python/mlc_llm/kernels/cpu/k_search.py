"""The search for the scales of ggml's K types, of many groups at once.

They compute what `quantization/scale_search.py` computes, which says where the formulas are from,
and give the same bits: every operation is one of float32, in the same order. So the target must
have no instruction that multiplies and adds at once.

x         float32 [size, n]: a group is a column; n is a multiple of L
weight    float32 [size, n]: what an error of each value costs
factors   float32 [candidates]: the steps to try
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.cpu.vectors import SCHEDULED, fsplat, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr

L = 8
SCALE, MINIMUM, INVERSE, LOW = range(4)
"""Rows of what `minima_search` finds."""
SIGNED_SCALE, SIGNED_INVERSE = range(2)
"""Rows of what `signed_search` finds."""


def _v(x: Buffer, i: Expr | int) -> Expr:
    """Row i of a small array of vectors."""
    return x[i, lanes_at(0, L)]


def _limited(value: Expr, low: int, high: int) -> Expr:
    """Rounded to whole numbers of a range."""
    whole = T.nearbyint(value)
    return T.min(T.max(whole, fsplat(low, L)), fsplat(high, L))


class _Columns:
    """Statements over the groups of L neighbouring columns. x, weight and q are [size, L]; `sums`
    has a row for each of these numbers of a group."""

    W, X, L1, L2, XL, ERROR, HIGH, BEST = range(8)
    SCALE, MINIMUM, INVERSE, LOW, DET, SAFE = range(8, 14)  # the first four as they are found

    def __init__(self, size: int, most: int) -> None:
        self.size, self.most = size, most

    @T.inline
    def load(self, X, W, first, x, weight, s):
        """Copies a group and its weights, and finds its range."""
        for i in T.serial(self.size):
            x[i, lanes_at(0, L)] = X[i, lanes_at(first, L)]
            weight[i, lanes_at(0, L)] = W[i, lanes_at(first, L)]
        s[self.LOW, lanes_at(0, L)] = _v(x, 0)
        s[self.HIGH, lanes_at(0, L)] = _v(x, 0)
        for i in T.serial(1, self.size):
            s[self.LOW, lanes_at(0, L)] = T.min(_v(s, self.LOW), _v(x, i))
            s[self.HIGH, lanes_at(0, L)] = T.max(_v(s, self.HIGH), _v(x, i))
        s[self.W, lanes_at(0, L)] = _v(weight, 0)
        s[self.X, lanes_at(0, L)] = _v(weight, 0) * _v(x, 0)
        for i in T.serial(1, self.size):
            s[self.W, lanes_at(0, L)] = _v(s, self.W) + _v(weight, i)
            s[self.X, lanes_at(0, L)] = _v(s, self.X) + _v(weight, i) * _v(x, i)

    @T.inline
    def add(self, x, weight, q, s, i):
        """Value i in the sums of least squares."""
        s[self.L1, lanes_at(0, L)] = _v(s, self.L1) + _v(weight, i) * _v(q, i)
        s[self.L2, lanes_at(0, L)] = _v(s, self.L2) + _v(weight, i) * _v(q, i) * _v(q, i)
        s[self.XL, lanes_at(0, L)] = _v(s, self.XL) + _v(weight, i) * _v(q, i) * _v(x, i)

    @T.inline
    def round(self, x, weight, q, s):
        """q, and its sums."""
        for row in T.unroll(3):
            s[self.L1 + row, lanes_at(0, L)] = fsplat(0.0, L)
        for i in T.serial(self.size):
            q[i, lanes_at(0, L)] = _limited(
                (_v(x, i) - _v(s, self.LOW)) * _v(s, self.INVERSE), 0, self.most
            )
            self.add(x, weight, q, s, i)

    @T.inline
    def solve(self, s):
        """The best scale and minimum for q; DET is where there is a solution."""
        s[self.DET, lanes_at(0, L)] = _v(s, self.W) * _v(s, self.L2) - _v(s, self.L1) * _v(
            s, self.L1
        )
        zero = T.meta_var(fsplat(0.0, L))
        solved = T.meta_var(_v(s, self.DET) > zero)
        s[self.SAFE, lanes_at(0, L)] = T.Select(solved, _v(s, self.DET), fsplat(1.0, L))
        s[self.SCALE, lanes_at(0, L)] = (
            _v(s, self.W) * _v(s, self.XL) - _v(s, self.X) * _v(s, self.L1)
        ) / _v(s, self.SAFE)
        s[self.MINIMUM, lanes_at(0, L)] = (
            _v(s, self.L2) * _v(s, self.X) - _v(s, self.L1) * _v(s, self.XL)
        ) / _v(s, self.SAFE)
        above = T.meta_var(T.bitwise_and(solved, _v(s, self.MINIMUM) > zero))
        s[self.SAFE, lanes_at(0, L)] = T.Select(above, _v(s, self.L2), fsplat(1.0, L))
        s[self.SCALE, lanes_at(0, L)] = T.Select(
            above, _v(s, self.XL) / _v(s, self.SAFE), _v(s, self.SCALE)
        )
        s[self.MINIMUM, lanes_at(0, L)] = T.Select(above, zero, _v(s, self.MINIMUM))

    @T.inline
    def measure(self, x, weight, q, s, d):
        """ERROR: the weighted squares of scale * q + minimum - x."""
        s[self.ERROR, lanes_at(0, L)] = fsplat(0.0, L)
        for i in T.serial(self.size):
            d[0, lanes_at(0, L)] = _v(s, self.SCALE) * _v(q, i) + _v(s, self.MINIMUM) - _v(x, i)
            s[self.ERROR, lanes_at(0, L)] = _v(s, self.ERROR) + _v(d, 0) * _v(d, 0) * _v(weight, i)

    @T.inline
    def begin(self, x, weight, q, s, d, fit):
        """The whole span in equal steps."""
        s[self.LOW, lanes_at(0, L)] = T.min(_v(s, self.LOW), fsplat(0.0, L))
        s[self.HIGH, lanes_at(0, L)] = T.Select(
            _v(s, self.HIGH) == _v(s, self.LOW), _v(s, self.LOW) + fsplat(1.0, L), _v(s, self.HIGH)
        )
        s[self.INVERSE, lanes_at(0, L)] = fsplat(self.most, L) / (
            _v(s, self.HIGH) - _v(s, self.LOW)
        )
        self.round(x, weight, q, s)
        s[self.SCALE, lanes_at(0, L)] = T.Select(
            _v(s, self.INVERSE) == fsplat(0.0, L),
            fsplat(0.0, L),
            fsplat(1.0, L) / _v(s, self.INVERSE),
        )
        s[self.MINIMUM, lanes_at(0, L)] = _v(s, self.LOW)
        self.measure(x, weight, q, s, d)
        d[0, lanes_at(0, L)] = fsplat(1.0, L)
        self.keep(s, fit, d)

    @T.inline
    def keep(self, s, fit, where):
        """Takes what a candidate has found, at the lanes where that number is not 0."""
        better = T.meta_var(_v(where, 0) != fsplat(0.0, L))
        s[self.BEST, lanes_at(0, L)] = T.Select(better, _v(s, self.ERROR), _v(s, self.BEST))
        for row in T.unroll(4):
            fit[row, lanes_at(0, L)] = T.Select(better, _v(s, self.SCALE + row), _v(fit, row))

    @T.inline
    def attempt(self, x, weight, q, s, d, fit, factor):
        """One candidate. It goes on from the best minimum so far, as the C code does."""
        s[self.LOW, lanes_at(0, L)] = _v(fit, MINIMUM)
        s[self.INVERSE, lanes_at(0, L)] = splat(factor, L) / (_v(s, self.HIGH) - _v(s, self.LOW))
        self.round(x, weight, q, s)
        self.solve(s)
        self.measure(x, weight, q, s, d)
        better = T.meta_var(
            T.bitwise_and(_v(s, self.DET) > fsplat(0.0, L), _v(s, self.ERROR) < _v(s, self.BEST))
        )
        d[0, lanes_at(0, L)] = T.Select(better, fsplat(1.0, L), fsplat(0.0, L))
        self.keep(s, fit, d)


@cache
def minima_search(size: int, most: int, candidates: int) -> PrimFunc:
    """Kernel arguments: x, weight, factors, found float32 [4, n]: the best scale, minimum, inverse
    and low of each group, of x ~ scale * q + minimum with q = round(inverse * (x - low)) in
    0 .. most.
    """
    columns = _Columns(size, most)

    @T.prim_func(private=True, s_tir=True)
    def search(
        x: T.handle,
        weights: T.handle,
        factors: T.Buffer((candidates,), "float32"),
        found: T.handle,
    ):
        T.func_attr(SCHEDULED)
        n = T.int32()
        X = T.match_buffer(x, (size, n), "float32")
        W = T.match_buffer(weights, (size, n), "float32")
        F = T.match_buffer(found, (4, n), "float32")
        with T.sblock("root"):
            for block in T.serial(n // L):
                one = T.alloc_buffer((size, L), "float32")
                weight = T.alloc_buffer((size, L), "float32")
                q = T.alloc_buffer((size, L), "float32")
                s = T.alloc_buffer((14, L), "float32")
                d = T.alloc_buffer((1, L), "float32")
                fit = T.alloc_buffer((4, L), "float32")
                columns.load(X, W, block * L, one, weight, s)
                columns.begin(one, weight, q, s, d, fit)
                for i in T.serial(candidates):
                    columns.attempt(one, weight, q, s, d, fit, factors[i])
                for row in T.unroll(4):
                    F[row, lanes_at(block * L, L)] = fit[row, lanes_at(0, L)]

    return search


@cache
def signed_search(size: int, candidates: int, half: int) -> PrimFunc:
    """Kernel arguments: x; weight; largest float32 [n], of each group, none of them 0; factors;
    found float32 [2, n]: the best scale of x ~ scale * q, and the inverse with which q = round(x *
    inverse) in -half .. half - 1 has it. Its first candidate counts whatever it is worth."""

    @T.inline
    def attempt(x, weight, s, best, scale, inverse, i):
        """One candidate; s: the sums of x * q and of q^2, the inverse, and the fitted scale."""
        s[0, lanes_at(0, L)] = fsplat(0.0, L)
        s[1, lanes_at(0, L)] = fsplat(0.0, L)
        for j in T.serial(size):
            s[3, lanes_at(0, L)] = _limited(_v(x, j) * _v(s, 2), -half, half - 1)
            s[0, lanes_at(0, L)] = _v(s, 0) + _v(weight, j) * _v(x, j) * _v(s, 3)
            s[1, lanes_at(0, L)] = _v(s, 1) + _v(weight, j) * _v(s, 3) * _v(s, 3)
        some = T.meta_var(_v(s, 1) != fsplat(0.0, L))
        s[3, lanes_at(0, L)] = T.Select(
            some, _v(s, 0) / T.Select(some, _v(s, 1), fsplat(1.0, L)), fsplat(0.0, L)
        )
        more = T.meta_var(_v(s, 0) * _v(s, 0) > _v(best, 0) * _v(s, 1))
        taken = T.meta_var(T.bitwise_and(_v(s, 1) > fsplat(0.0, L), more))
        first = T.meta_var(splat(T.cast(i == 0, "float32"), L) > fsplat(0.0, L))
        s[4, lanes_at(0, L)] = T.Select(T.bitwise_or(first, taken), fsplat(1.0, L), fsplat(0.0, L))
        better = T.meta_var(_v(s, 4) > fsplat(0.0, L))
        scale[0, lanes_at(0, L)] = T.Select(better, _v(s, 3), _v(scale, 0))
        best[0, lanes_at(0, L)] = T.Select(better, _v(s, 3) * _v(s, 0), _v(best, 0))
        inverse[0, lanes_at(0, L)] = T.Select(better, _v(s, 2), _v(inverse, 0))

    @T.prim_func(private=True, s_tir=True)
    def search(
        x: T.handle,
        weights: T.handle,
        largest: T.handle,
        factors: T.Buffer((candidates,), "float32"),
        found: T.handle,
    ):
        T.func_attr(SCHEDULED)
        n = T.int32()
        X = T.match_buffer(x, (size, n), "float32")
        W = T.match_buffer(weights, (size, n), "float32")
        M = T.match_buffer(largest, (n,), "float32")
        F = T.match_buffer(found, (2, n), "float32")
        with T.sblock("root"):
            for block in T.serial(n // L):
                one = T.alloc_buffer((size, L), "float32")
                weight = T.alloc_buffer((size, L), "float32")
                s = T.alloc_buffer((5, L), "float32")
                best = T.alloc_buffer((1, L), "float32")
                scale = T.alloc_buffer((1, L), "float32")
                inverse = T.alloc_buffer((1, L), "float32")
                best[0, lanes_at(0, L)] = fsplat(0.0, L)
                scale[0, lanes_at(0, L)] = fsplat(0.0, L)
                inverse[0, lanes_at(0, L)] = fsplat(0.0, L)
                for j in T.serial(size):
                    one[j, lanes_at(0, L)] = X[j, lanes_at(block * L, L)]
                    weight[j, lanes_at(0, L)] = W[j, lanes_at(block * L, L)]
                for i in T.serial(candidates):
                    s[2, lanes_at(0, L)] = splat(factors[i], L) / M[lanes_at(block * L, L)]
                    attempt(one, weight, s, best, scale, inverse, i)
                F[SIGNED_SCALE, lanes_at(block * L, L)] = scale[0, lanes_at(0, L)]
                F[SIGNED_INVERSE, lanes_at(block * L, L)] = inverse[0, lanes_at(0, L)]

    return search
