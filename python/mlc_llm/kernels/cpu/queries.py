"""Queries: turned, multiplied by their factor, and put where attention reads them.

    in parallel, for each token:
        for each query head:  rotated = turn(query, position) * scale
        with sink_query:      the same once more, turned by sink_position

turn: see `rotation.py`. Where the keys and values are new as well, `kv_pages.py` does this.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.rotation import (
    Columns,
    Turn,
    query_factor,
    rest_lanes,
    turn_lanes,
    turned,
)
from mlc_llm.kernels.cpu.vectors import SCHEDULED, lanes_at, splat
from mlc_llm.kernels.heads import Heads
from mlc_llm.kernels.types import Buffer
from mlc_llm.record import record

MANY = 8
"""Tokens from which on a second thread is worth its wake-up."""


@record(eq=False)
class Queries:
    """The arguments of `rotate_queries`, which describes them."""

    q: Columns
    rope: Buffer
    position: Buffer
    sink_position: Buffer
    rotated: Buffer


@T.inline
def _copy_rest(sizes, queries, row, column, out, factor):
    """The elements of a query that stay, multiplied by `factor`; they begin at that column."""
    lanes = T.meta_var(rest_lanes(sizes))
    for i in T.serial(sizes.rest // lanes):
        queries.rotated[row, lanes_at(out + i * lanes, lanes)] = queries.q.at(
            row, column + i * lanes, lanes
        ) * splat(factor, lanes)


@T.inline
def _rotate_queries(sizes, queries, row, position, column, factor):
    """All queries of a token, turned and multiplied by `factor`, from that column of `rotated`
    on."""
    half = T.meta_var(sizes.half)
    lanes = T.meta_var(turn_lanes(sizes))
    turn = T.meta_var(Turn(queries.rope, position[row]))
    for h in T.serial(sizes.heads):
        head = T.meta_var(queries.q.start + h * sizes.head_dim)
        out = T.meta_var(column + h * sizes.head_dim)
        if half > 0:
            for i in T.serial(half // lanes):
                queries.rotated[row, lanes_at(out + i * lanes, lanes)] = turned(
                    sizes, queries.q, row, head, turn, i * lanes, True
                ) * splat(factor, lanes)
                queries.rotated[row, lanes_at(out + half + i * lanes, lanes)] = turned(
                    sizes, queries.q, row, head, turn, i * lanes, False
                ) * splat(factor, lanes)
        if sizes.rest > 0:
            _copy_rest(sizes, queries, row, head + sizes.rope_dim, out + sizes.rope_dim, factor)


@T.inline
def put_queries(sizes, queries, row, sink_query):
    """A token's queries into `rotated`."""
    if sizes.query_scaling is None:
        _rotate_queries(sizes, queries, row, queries.position, 0, query_factor(sizes))
    else:
        factor = T.alloc_buffer((1,), "float32")
        factor[0] = query_factor(sizes, queries.position[row])
        _rotate_queries(sizes, queries, row, queries.position, 0, factor[0])
    if sink_query:
        _rotate_queries(
            *(sizes, queries, row, queries.sink_position),
            *(sizes.heads * sizes.head_dim, query_factor(sizes)),
        )


@cache
def rotate_queries(
    sizes: Heads, width: int, offset: int, *, sink_query: bool = False, has_bias: bool = False
) -> PrimFunc:
    """Rotates queries (halves paired, as GPT-NeoX).

    q            float32 [m, width]: they start at column `offset`
    q_bias       float32 [heads * head_dim], added to them; there is none unless `has_bias`
    rope         float32 [n, 2, rope_dim/2]: cosines, then sines, of every position; there is none
                 if nothing turns
    position     int32 [m], each below n; sink_position as well
    rotated      float32 [m, heads * head_dim]: queries, scaled as `Heads` says

    sink_query: each row of `rotated` has a second query behind the first, turned by `sink_position`
    (which is not read otherwise).
    """
    assert not (sink_query and sizes.query_scaling), "positions that turn sinks are no others"
    one = sizes.heads * sizes.head_dim

    @T.prim_func(private=True, s_tir=True)
    def rotate(
        q: T.handle,
        q_bias: T.handle,
        rope: T.handle,
        position: T.handle,
        sink_position: T.handle,
        rotated: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        n = T.int32()
        Q = T.match_buffer(q, (m, width), "float32")
        Q_BIAS = T.match_buffer(q_bias, (one,), "float32")
        R = T.match_buffer(rope, (n, 2, sizes.half), "float32")
        POS = T.match_buffer(position, (m,), "int32")
        SINK = T.match_buffer(sink_position, (m,), "int32")
        O = T.match_buffer(rotated, (m, (2 if sink_query else 1) * one), "float32")
        with T.sblock("root"):
            queries = T.meta_var(
                Queries(Columns(Q, offset, Q_BIAS if has_bias else None), R, POS, SINK, O)
            )
            if m >= MANY:
                for row in T.parallel(m):
                    put_queries(sizes, queries, row, sink_query)
            else:
                for row in T.serial(m):
                    put_queries(sizes, queries, row, sink_query)

    return without(rotate, *(() if has_bias else ("Q_BIAS",)), *(() if sizes.half else ("R",)))
