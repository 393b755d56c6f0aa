"""Which experts a token gets, and the way of its row to them and back.

route:
    for token in tokens:                               parallel, unless they are few
      experts = those with the largest scores          of two that are as large the first one
      weights = e^score of each, divided by the sum over all experts, or over the chosen ones;
                or sigmoid(score) of each, divided by the sum over the chosen ones or not
    expert rows = the pairs of a token and one of its choices, sorted by expert, then by token
    starts = the first expert row of each expert, and the number of expert rows

send:     for each expert row: y[expert row] = x[its token]
collect:  for each token: y[token] = sum over its choices of weight * x[expert row of the choice]

The chosen experts of a token are in the order of their scores, so a sum does not depend on the
other tokens.
"""

from __future__ import annotations

import math
from functools import cache

import tvm
from tvm.script import tirx as T

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.activation import each_row
from mlc_llm.kernels.cpu.input_kinds import ACTIVATIONS
from mlc_llm.kernels.cpu.vectors import LOG2E, SCHEDULED, exp2, lanes_at, splat
from mlc_llm.kernels.types import Index

L = 8
sigmoid = ACTIVATIONS["sigmoid"]
SERIAL_WORDS = 2**15
"""Up to here a thread-pool launch costs more than to copy or to add so many numbers."""


@T.inline
def add_up(x, count, total):
    """total[0]: the sum of the first `count` elements."""
    total[0] = T.float32(0)
    for i in T.serial(count):
        total[0] = total[0] + x[i]


@cache
def route(
    experts: int,
    width: int,
    chosen: int,
    *,
    of_chosen: bool,
    has_bias: bool = False,
    by_sigmoid: bool = False,
    scale: float = 1.0,
) -> tvm.tirx.PrimFunc:
    """Kernel arguments. of_chosen: the weights of the chosen experts sum to 1. by_sigmoid: weights
    are sigmoids, times `scale`.

    scores       float32 [m, width]; width is a multiple of 8, experts are the first columns
    bias         float32 [experts], added to the scores, or to the sigmoids by which experts are
                 chosen; only if `has_bias`
    weights      float32 [m, chosen]
    expert_rows  int32 [m, chosen]: of each choice
    tokens       int32 [m * chosen]: of each expert row
    starts       int32 [experts + 1]
    """
    kind = SigmoidChoice if by_sigmoid else Choice
    choice = kind(experts, width, chosen, of_chosen, has_bias, scale)

    @T.prim_func(private=True, s_tir=True)
    def choose_experts(
        scores: T.handle,
        BIAS: T.Buffer((experts,), "float32"),
        weights: T.handle,
        expert_rows: T.handle,
        tokens: T.handle,
        starts: T.Buffer((experts + 1,), "int32"),
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        S = T.match_buffer(scores, (m, width), "float32")
        WEIGHTS = T.match_buffer(weights, (m, chosen), "float32")
        EXPERT_ROWS = T.match_buffer(expert_rows, (m, chosen), "int32")
        TOKENS = T.match_buffer(tokens, (rows,), "int32")
        with T.sblock("root"):
            each_row(choice.one_row, m, S, BIAS, WEIGHTS, EXPERT_ROWS)
            choice.sort(m, EXPERT_ROWS, TOKENS, starts)

    return choose_experts if has_bias else without(choose_experts, "BIAS")


class Choice:
    """Statements of `route`. Before they are sorted, `expert_rows` has the numbers of experts."""

    def __init__(
        self,
        experts: int,
        width: int,
        chosen: int,
        of_chosen: bool,
        has_bias: bool,
        scale: float,
    ) -> None:
        self.experts, self.width, self.chosen = experts, width, chosen
        self.of_chosen, self.has_bias, self.scale = of_chosen, has_bias, scale
        self.padded = -(-chosen // L) * L

    @T.inline
    def one_row(self, S, bias, weights, expert_rows, row):
        """Experts and weights of a token."""
        score = T.alloc_buffer((self.width,), "float32")
        top = T.alloc_buffer((self.padded,), "float32")
        total = T.alloc_buffer((1,), "float32")
        for i in T.serial(self.width // L):
            score[lanes_at(i * L, L)] = S[row, lanes_at(i * L, L)]
        if self.has_bias:
            for e in T.serial(self.experts):
                score[e] = score[e] + bias[e]
        self.choose(score, expert_rows, row)
        for c in T.serial(self.padded):
            top[c] = score[expert_rows[row, T.min(c, self.chosen - 1)]]
        self.take_powers(top, self.padded, score[expert_rows[row, 0]])
        if self.of_chosen:
            add_up(top, self.chosen, total)
        else:
            self.take_powers(score, self.width, score[expert_rows[row, 0]])
            add_up(score, self.experts, total)
        for c in T.serial(self.chosen):
            weights[row, c] = top[c] / total[0]

    @T.inline
    def choose(self, score, expert_rows, row):
        """The experts of a token. Scores that are no numbers choose some experts, too."""
        is_free = T.alloc_buffer((self.experts,), "int32")
        best = T.alloc_buffer((1,), "int32")
        for e in T.serial(self.experts):
            is_free[e] = 1
        for c in T.serial(self.chosen):
            best[0] = -1
            for e in T.serial(self.experts):
                if is_free[e] == 1:
                    if T.Or(best[0] < 0, score[e] > score[T.max(best[0], 0)]):
                        best[0] = e
            is_free[best[0]] = 0
            expert_rows[row, c] = best[0]

    @T.inline
    def take_powers(self, x, count, largest):
        """x = e^(x - largest), of the first `count`."""
        most: T.let[T.float32] = largest
        for i in T.serial(count // L):
            x[lanes_at(i * L, L)] = exp2(
                (x[lanes_at(i * L, L)] - splat(most, L)) * splat(T.float32(LOG2E), L), L
            )

    @T.inline
    def sort(self, m, expert_rows, tokens, starts):
        """Counts the choices of each expert, then numbers them."""
        free = T.alloc_buffer((self.experts,), "int32")
        for e in T.serial(self.experts + 1):
            starts[e] = 0
        for i, c in T.grid(m, self.chosen):
            starts[expert_rows[i, c] + 1] = starts[expert_rows[i, c] + 1] + 1
        for e in T.serial(self.experts):
            starts[e + 1] = starts[e + 1] + starts[e]
            free[e] = starts[e]
        for i, c in T.grid(m, self.chosen):
            expert: T.let[T.int32] = expert_rows[i, c]
            expert_rows[i, c] = free[expert]
            tokens[free[expert]] = i
            free[expert] = free[expert] + 1


class SigmoidChoice(Choice):
    """The same where the weights are sigmoids of the scores."""

    @T.inline
    def one_row(self, S, bias, weights, expert_rows, row):
        """Experts and weights of a token."""
        score = T.alloc_buffer((self.width,), "float32")
        rated = T.alloc_buffer((self.width,), "float32")
        top = T.alloc_buffer((self.padded,), "float32")
        total = T.alloc_buffer((1,), "float32")
        for i in T.serial(self.width // L):
            score[lanes_at(i * L, L)] = sigmoid(S[row, lanes_at(i * L, L)], L)
        for e in T.serial(self.experts):
            rated[e] = score[e]
            if self.has_bias:
                rated[e] = score[e] + bias[e]
        self.choose(rated, expert_rows, row)
        for c in T.serial(self.chosen):
            top[c] = score[expert_rows[row, c]]
        total[0] = T.float32(1)
        if self.of_chosen:
            add_up(top, self.chosen, total)
        for c in T.serial(self.chosen):
            weights[row, c] = top[c] / total[0] * T.float32(self.scale)


@cache
def send(row: tuple[int, ...], dtype: str) -> tvm.tirx.PrimFunc:
    """Kernel arguments: tokens as of `route`, x [m, *row], y [m * chosen, *row]; elements have 32
    bits."""
    width = math.prod(row)
    lanes = math.gcd(width, L)

    def rows(count: Index) -> tuple[Index, ...]:
        """The shape of so many rows."""
        return (count, *row)

    @T.inline
    def one_row(tokens, X, Y, i):
        """Copies a row."""
        for j in T.serial(width // lanes):
            Y[i, lanes_at(j * lanes, lanes)] = X[tokens[i], lanes_at(j * lanes, lanes)]

    @T.prim_func(private=True, s_tir=True)
    def send_rows(tokens: T.handle, x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        count = T.int32()
        TOKENS = T.match_buffer(tokens, (count,), "int32")
        given = T.match_buffer(x, rows(m), dtype)
        sent = T.match_buffer(y, rows(count), dtype)
        with T.sblock("root"):
            X = T.decl_buffer((m, width), dtype, data=given.data, elem_offset=0)
            Y = T.decl_buffer((count, width), dtype, data=sent.data, elem_offset=0)
            if count * width <= SERIAL_WORDS:
                for i in T.serial(count):
                    one_row(TOKENS, X, Y, i)
            else:
                for i in T.parallel(count):
                    one_row(TOKENS, X, Y, i)

    return send_rows


@cache
def collect(width: int, chosen: int) -> tvm.tirx.PrimFunc:
    """Kernel arguments; width is a multiple of 8:

    weights      float32 [m, chosen]
    expert_rows  int32 [m, chosen]
    x            float32 [m * chosen, width]
    y            float32 [m, width]
    """

    @T.inline
    def one_row(weights, expert_rows, X, Y, row):
        """Adds the results of a token's experts, from the first choice to the last."""
        for i in T.serial(width // L):
            Y[row, lanes_at(i * L, L)] = (
                splat(weights[row, 0], L) * X[expert_rows[row, 0], lanes_at(i * L, L)]
            )
        for c in T.serial(chosen - 1):
            for i in T.serial(width // L):
                Y[row, lanes_at(i * L, L)] = (
                    Y[row, lanes_at(i * L, L)]
                    + splat(weights[row, c + 1], L) * X[expert_rows[row, c + 1], lanes_at(i * L, L)]
                )

    @T.prim_func(private=True, s_tir=True)
    def collect_rows(weights: T.handle, expert_rows: T.handle, x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        WEIGHTS = T.match_buffer(weights, (m, chosen), "float32")
        EXPERT_ROWS = T.match_buffer(expert_rows, (m, chosen), "int32")
        X = T.match_buffer(x, (rows, width), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        with T.sblock("root"):
            if m * (chosen * width) <= SERIAL_WORDS:
                for row in T.serial(m):
                    one_row(WEIGHTS, EXPERT_ROWS, X, Y, row)
            else:
                for row in T.parallel(m):
                    one_row(WEIGHTS, EXPERT_ROWS, X, Y, row)

    return collect_rows
