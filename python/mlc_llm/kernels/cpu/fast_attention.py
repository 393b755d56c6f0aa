"""Attention of fast tokens on tile registers, and of exact tokens beside them (`attention.py`).

    in parallel, for each task (query block of fast tokens, KV head):
        query tiles = queries of up to 128 rows
        for each KV split that is seen:
            key tiles, value tiles = its pages
            for each 32 rows:
                scores = query tiles x key tiles;  mask, softmax
                part = weight tiles x value tiles;  fold
        write
    then exact attention of all other tokens

Softmax and the folding of splits are those of exact attention. Queries, keys, values and weights
are rounded to bfloat16.

Buffers: `attention_kernel` describes the arguments, `fast_attention_tiles.py` those of a task.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.amx import ROWS
from mlc_llm.kernels.cpu.amx_pipeline import L
from mlc_llm.kernels.cpu.attention import attend, attention_kernel
from mlc_llm.kernels.cpu.attention_shape import (
    KV_SPLIT,
    Shape,
    before_window,
    query_column,
    sees_split,
    split_count,
)
from mlc_llm.kernels.cpu.attention_softmax import (
    cap_scores,
    clear,
    fold,
    seen_score,
    softmax,
    write,
)
from mlc_llm.kernels.cpu.attention_tasks import spread, spread_count
from mlc_llm.kernels.cpu.fast_attention_tiles import (
    PAIR,
    load_keys,
    load_query,
    load_values,
    new_scratch,
    score,
    sum_values,
)
from mlc_llm.kernels.cpu.vectors import lanes_at

PARTS = 8
"""Parts of all tasks: every thread gets tasks of each, since later tokens see more."""


def has_fast_attention(head_dim: int, isa: Isa) -> bool:
    """Whether fast tokens have an attention on tiles."""
    return isa.fast and isa.amx_tiles and head_dim % PAIR == 0


@T.inline
def _begin(shape, given, scratch, block, kv_head):
    """Rows that have seen no key, and their queries as tiles."""
    scratch.zero[0] = 0
    scratch.column[0] = query_column(shape, 0, given.window)
    amx.configure(scratch.config, ROWS)
    for r in T.serial(scratch.rows):
        scratch.token[r] = given.blocks[block, 0] + T.min(
            r // shape.heads_per_kv, given.blocks[block, 1] - 1
        )
        scratch.place[r] = given.place[scratch.token[r]]
        scratch.before[r] = before_window(shape, given, scratch.token[r])
        clear(
            *(shape, scratch.state, r, given),
            kv_head * shape.heads_per_kv + r % shape.heads_per_kv,
        )
        load_query(shape, given, scratch, kv_head, r)
    scratch.oldest[0] = given.place[given.blocks[block, 0]]
    scratch.before_oldest[0] = before_window(shape, given, given.blocks[block, 0])
    scratch.newest[0] = given.place[given.blocks[block, 0] + given.blocks[block, 1] - 1]


@T.inline
def _load_split(shape, given, scratch, block, kv_head, which):
    """A KV split's keys and values as tiles, and the queries that it is seen with."""
    scratch.first[0] = which * KV_SPLIT
    scratch.count[0] = T.min(KV_SPLIT, scratch.newest[0] // PAGE + 1 - scratch.first[0])
    if shape.sink_query:  # splits with sinks come first: this happens once
        if scratch.column[0] != query_column(shape, scratch.first[0] * PAGE, given.window):
            scratch.column[0] = query_column(shape, scratch.first[0] * PAGE, given.window)
            for r in T.serial(scratch.rows):
                load_query(shape, given, scratch, kv_head, r)
    for pair in T.serial((scratch.count[0] + 1) // 2):
        load_keys(shape, given, scratch, block, kv_head, pair)
        load_values(shape, given, scratch, block, kv_head, pair)
    # A page behind the last one is masked as a whole.
    scratch.count[0] = (scratch.count[0] + 1) // 2 * 2


@T.inline
def _mask(given, scratch, group):
    """Masks scores of keys that the rows of a group do not see."""
    for r in T.serial(PAIR):
        for page in T.serial(scratch.count[0]):
            first = T.meta_var((scratch.first[0] + page) * PAGE)
            scratch.scores[r, lanes_at(page * L, L)] = seen_score(
                scratch.scores[r, lanes_at(page * L, L)],
                first,
                scratch.place[group * PAIR + r],
                scratch.before[group * PAIR + r],
                given.window,
                L,
            )


@T.inline
def _fold_split(shape, given, scratch, group):
    """The split's softmax for the 32 rows of a group, folded into their state."""
    score(shape, scratch, group)
    cap_scores(shape, L, scratch.scores, scratch.count, PAIR)
    if T.Or(
        (scratch.first[0] + scratch.count[0]) * PAGE > scratch.oldest[0] + 1,
        scratch.first[0] * PAGE <= scratch.before[scratch.rows - 1],
    ):
        _mask(given, scratch, group)
    softmax(shape, scratch.scores, scratch.part, scratch.zero, scratch.count, PAIR)
    sum_values(shape, scratch)
    for r in T.serial(PAIR):
        fold(shape, scratch.state, group * PAIR + r, scratch.part, r)


@T.inline
def _attend_block(shape, given, block, kv_head):
    """All KV splits of a query block of fast tokens, one after the other."""
    per_kv = T.meta_var(shape.heads_per_kv)
    scratch = T.meta_var(new_scratch(shape))
    _begin(shape, given, scratch, block, kv_head)
    for which in T.serial(split_count(scratch.newest[0])):
        if sees_split(which, scratch.before_oldest[0], given.window):
            _load_split(shape, given, scratch, block, kv_head, which)
            for group in T.serial(T.ceildiv(given.blocks[block, 1] * per_kv, PAIR)):
                _fold_split(shape, given, scratch, group)
    for r in T.serial(given.blocks[block, 1] * per_kv):
        write(
            *(shape, scratch.state, r, given.out),
            *(scratch.token[r], kv_head * per_kv + r % per_kv),
        )
    T.evaluate(amx.release())


@T.inline
def _attend_fast(shape, given, fast_tokens):
    """Attention of the first `fast_tokens` tokens; their query blocks come first."""
    tasks = T.alloc_buffer((1,), "int32")
    tasks[0] = 0
    for block in T.serial(given.block_count):
        if given.blocks[block, 0] < fast_tokens:
            tasks[0] = tasks[0] + shape.kv_heads
    for u in T.parallel(spread_count(tasks[0], PARTS)):
        task = T.alloc_buffer((1,), "int32")
        task[0] = spread(u, tasks[0], PARTS)
        if task[0] < tasks[0]:
            _attend_block(shape, given, task[0] // shape.kv_heads, task[0] % shape.kv_heads)


@cache
def fast_attention(shape: Shape) -> PrimFunc:
    """Kernel arguments: see `attention_kernel`, with F.

    The query blocks of fast tokens come first, of up to `fast_query_block_tokens` tokens each.
    """

    @T.inline
    def compute(given, F):
        """Fast tokens, then all others."""
        if F[0] > 0:
            _attend_fast(shape, given, F[0])
        if F[0] < given.tokens:
            attend(shape, None, given, F[0])

    return attention_kernel(shape, compute, has_fast=True)
