"""Softmax of scores, split by split (the online softmax of Milakov and Gimelshein 2018; Dao 2022).

    scores of a KV split, in place, for each row:
        best = max(scores);  scores = 2^(scores - best), 0 where masked;  total = sum(scores)
    clear: a learned sink s is a split with best = s, total = 1 and no values
    fold: two splits of a row become one, scaled to the larger best of both
    write: out = sums / total

Scores are in units of log2, since queries are scaled by log2(e).

scores   float32 [R, SPLIT_KEYS]: a row's scores, then its weights
state    `Softmax`, of R rows or of all rows of a step
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.kernels.cpu.attention_shape import Shape, before_window
from mlc_llm.kernels.cpu.bf16_pairs import power
from mlc_llm.kernels.cpu.vectors import (
    LOG2E,
    capped,
    exp2,
    fsplat,
    lanes_at,
    reduce_max,
    reduce_sum,
    splat,
)
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.record import record

MASKED = -1.0e30
"""Score of a key that is not seen."""


@record(eq=False)
class Softmax:
    """What the keys so far gave to each row."""

    sums: Buffer
    """float32 [rows, head_dim]: values, each times its weight."""
    best: Buffer
    """float32 [rows]: the largest score."""
    total: Buffer
    """float32 [rows]: the sum of the weights 2^(score - best)."""


def new_softmax(rows: Index, head_dim: int) -> Softmax:
    """Scratch for so many rows, with nothing in it."""
    return Softmax(
        sums=T.alloc_buffer((rows, head_dim), "float32"),
        best=T.alloc_buffer((rows,), "float32"),
        total=T.alloc_buffer((rows,), "float32"),
    )


def seen_score(
    score: Expr, first: Index, place: Expr, before: Expr, window: Buffer, lanes: int
) -> Expr:
    """Scores of keys from place `first` on, MASKED where a token at `place`, with that
    `before_window`, does not see them."""
    key = T.ramp(first, 1, lanes)
    is_near = T.And(key <= splat(place, lanes), key > splat(before, lanes))
    is_sink = T.And(key <= splat(place, lanes), key < splat(window[1], lanes))
    return T.Select(T.Or(is_near, is_sink), score, fsplat(MASKED, lanes))


def _power(shape: Shape, x: Expr) -> Expr:
    """2^x, as good as the products are."""
    return power(x) if shape.pairs else exp2(x, shape.lanes)


def _weight(shape: Shape, score: Expr, best: Expr) -> Expr:
    """2^(score - best); a masked score weighs exactly nothing, not 2^-126."""
    weight = _power(shape, score - splat(best, shape.lanes))
    if shape.pairs:  # there it is 0
        return weight
    hidden = score == fsplat(MASKED, shape.lanes)
    return T.Select(hidden, fsplat(0.0, shape.lanes), weight)


def _side_by_side(rows: int) -> int:
    """The most rows, of up to four, that divide so many."""
    return next(count for count in (4, 3, 2, 1) if rows % count == 0)


@T.inline
def cap_scores(shape, L, scores, pages, rows):
    """Caps the scores of `pages[0]` pages of `rows` rows, if the model asks for it."""
    if shape.score_cap is not None:
        for r in T.serial(rows):
            for v in T.serial(pages[0] * (PAGE // L)):
                scores[r, lanes_at(v * L, L)] = capped(
                    scores[r, lanes_at(v * L, L)], shape.score_cap * LOG2E, L
                )


@T.inline
def mask(shape, given, rows, split, scores):
    """Masks the scores of a split's keys that a row does not see."""
    L = T.meta_var(shape.lanes)
    for r in T.serial(rows.count):
        for v in T.serial(split.count[0] * (PAGE // L)):
            scores[r, lanes_at(v * L, L)] = seen_score(
                *(scores[r, lanes_at(v * L, L)], split.first[0] * PAGE + v * L),
                given.place[rows.token[r // shape.heads_per_kv]],
                before_window(shape, given, rows.token[r // shape.heads_per_kv]),
                *(given.window, L),
            )


@T.inline
def softmax(shape, scores, state, first_row, pages, rows):
    """Turns scores of `pages[0]` pages into weights; best and total go to `state` from row
    `first_row[0]` on."""
    # Several rows side by side: one alone would wait for each of its sums.
    L = T.meta_var(shape.lanes)
    few = T.meta_var(_side_by_side(rows))
    lane = T.meta_var(lanes_at(0, L))
    part = T.alloc_buffer((few, L), "float32")
    top = T.alloc_buffer((few,), "float32")
    for r0 in T.serial(rows // few):
        for r in T.unroll(few):
            part[r, lane] = scores[r0 * few + r, lane]
        for v in T.serial(pages[0] * (PAGE // L) - 1):
            for r in T.unroll(few):
                part[r, lane] = T.max(part[r, lane], scores[r0 * few + r, lanes_at((v + 1) * L, L)])
        for r in T.unroll(few):
            top[r] = reduce_max(part, L, r)
            state.best[first_row[0] + r0 * few + r] = top[r]
            part[r, lane] = fsplat(0.0, L)
        for v in T.serial(pages[0] * (PAGE // L)):
            for r in T.unroll(few):
                scores[r0 * few + r, lanes_at(v * L, L)] = _weight(
                    shape, scores[r0 * few + r, lanes_at(v * L, L)], top[r]
                )
                part[r, lane] = part[r, lane] + scores[r0 * few + r, lanes_at(v * L, L)]
        for r in T.unroll(few):
            state.total[first_row[0] + r0 * few + r] = reduce_sum(part, L, r)


@T.inline
def clear(shape, state, r, given, head):
    """Row r, of that query head, has seen no key, but its learned sink if there is one."""
    L = T.meta_var(shape.lanes)
    if shape.learned_sinks:
        state.best[r] = given.sinks[head] * T.float32(LOG2E)
        state.total[r] = T.float32(1)
    else:
        state.best[r] = T.float32(MASKED)
        state.total[r] = T.float32(0)
    for d in T.unroll(shape.head_dim // L):
        state.sums[r, lanes_at(d * L, L)] = fsplat(0.0, L)


@T.inline
def fold(shape, state, r, part, j):
    """Row r of `state` takes in row j of `part`; both are scaled to the larger best."""
    L = T.meta_var(shape.lanes)
    lane = T.meta_var(lanes_at(0, L))
    top = T.alloc_buffer((1,), "float32")
    old_scale = T.alloc_buffer((L,), "float32")
    new_scale = T.alloc_buffer((L,), "float32")
    top[0] = T.max(state.best[r], part.best[j])
    old_scale[lane] = _power(shape, splat(state.best[r] - top[0], L))
    new_scale[lane] = _power(shape, splat(part.best[j] - top[0], L))
    state.best[r] = top[0]
    state.total[r] = state.total[r] * old_scale[0] + part.total[j] * new_scale[0]
    for d in T.unroll(shape.head_dim // L):
        state.sums[r, lanes_at(d * L, L)] = (
            state.sums[r, lanes_at(d * L, L)] * old_scale[lane]
            + part.sums[j, lanes_at(d * L, L)] * new_scale[lane]
        )


@T.inline
def write(shape, state, r, out, token, head):
    """The result of row r, as that head of that token."""
    L = T.meta_var(shape.lanes)
    for d in T.unroll(shape.head_dim // L):
        out[token, lanes_at(head * shape.head_dim + d * L, L)] = state.sums[
            r, lanes_at(d * L, L)
        ] * splat(T.float32(1) / state.total[r], L)
