"""Causal attention of new tokens over paged keys and values, for prefill and decode.

    in parallel, for each task (query block, KV head, KV split):
        several tokens:  for each KV split that is seen: attend_split, fold;  write
        one token:       attend_split of this one split
    for each query block of one token, for each KV head:
        for each KV split that is seen: fold;  write

A row is a query head of a token; the rows of a task share keys and values. For a KV split a row
makes a softmax of its own (`attention_products.py`). Splits are then folded together, the first one
first (`attention_softmax.py`). So a row's bits depend on nothing but its own place: neither on the
tokens beside it nor on who computes which split.

A query block of several tokens is one task, which does all its splits. A query block of one token
is a task a split, so that a long sequence that decodes keeps all threads busy.

Buffers (k parts; `attention_kernel` describes the arguments, `attention_shape.py` the rows of a
task):

parts     `Softmax` of k * heads rows: what a KV split gave to a query block of one token. The parts
          of query block t begin at `Task.first_part`.
scratch   `Scratch` of the tasks that a worker does, one after the other

With `vnni-bf16` kernels, tokens that need not be exact have products of pairs (`Shape.pairs`). A
task has either such tokens or others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cpu.attention_operands import new_scores
from mlc_llm.kernels.cpu.attention_products import attend_split
from mlc_llm.kernels.cpu.attention_shape import (
    Arguments,
    QueryRows,
    Shape,
    before_window,
    sees_split,
    split_count,
    unread,
)
from mlc_llm.kernels.cpu.attention_softmax import Softmax, clear, fold, new_softmax, write
from mlc_llm.kernels.cpu.attention_tasks import (
    count_parts,
    find_block,
    find_parts,
    new_task,
    spread,
    spread_count,
    spread_stride,
    worker_count,
)
from mlc_llm.kernels.cpu.bf16_pairs import imported
from mlc_llm.kernels.cpu.prefetch import align_stack
from mlc_llm.kernels.cpu.vectors import SCHEDULED
from mlc_llm.kernels.types import Buffer
from mlc_llm.record import record

MANY = 64
"""Tasks from which on a second thread is worth its wake-up to fold splits together."""


def query_block_tokens(heads: int, kv_heads: int, isa: Isa) -> int:
    """Most tokens of a query block: as many as keep the scores of all rows in registers."""
    rows = 12 if isa.lanes == 16 else 6
    return max(1, rows // (heads // kv_heads))


def has_pair_products(head_dim: int, isa: Isa) -> bool:
    """Whether tokens that need not be exact have products of pairs."""
    return isa.fast and isa.bf16 and head_dim % (2 * isa.lanes) == 0


def has_both_products(head_dim: int, isa: Isa) -> bool:
    """Whether the step says which tokens those are. With `precision="fast"` all are."""
    return has_pair_products(head_dim, isa) and not isa.one_plane


def apart_tokens(block: int) -> int:
    """Tokens of a row, at most, that get a query block each. One of several tokens is computed
    whole, whatever their number, and all its splits by one thread: of the default model, where it
    has four tokens, two take 0.6 times as long apart, three 0.85 times, and four as long."""
    return max(1, min(3, 3 * block // 4))


@record(eq=False)
class Scratch:
    """What the tasks of a worker need, with nothing in it. TVM takes such buffers from its heap,
    which for each task would cost a tenth of the time of a small one."""

    scores: Buffer
    """`attention_operands.new_scores` of R rows: what they have of a split, then the weights."""
    softmax: Softmax
    """Of 2 * R rows: what all splits so far gave to the rows of a task, then what one gives."""


def _new_scratch(shape: Shape) -> Scratch:
    """Scratch for any task. shape: the one with the longer rows of scores."""
    rows = query_block_tokens(shape.heads, shape.kv_heads, shape.isa) * shape.heads_per_kv
    return Scratch(new_scores(shape, rows), new_softmax(2 * rows, shape.head_dim))


@T.inline
def _attend_block(shape, given, block, kv_head, scratch):
    """All KV splits of a query block, one after the other."""
    tokens = T.meta_var(query_block_tokens(shape.heads, shape.kv_heads, shape.isa))
    token = T.alloc_buffer((tokens,), "int32")
    count = T.meta_var(tokens * shape.heads_per_kv)
    rows = T.meta_var(QueryRows(count, token, kv_head, given.blocks[block, 2]))
    state = T.meta_var(scratch.softmax)
    behind = T.alloc_buffer((1,), "int32")
    behind[0] = count
    for i in T.unroll(tokens):  # rows behind the last token repeat it and are not written
        token[i] = given.blocks[block, 0] + T.min(i, given.blocks[block, 1] - 1)
    per_kv = T.meta_var(shape.heads_per_kv)
    for r in T.serial(count):
        clear(shape, state, r, given, kv_head * per_kv + r % per_kv)
    newest: T.let[T.int32] = given.place[token[tokens - 1]]
    for which in T.serial(split_count(newest)):
        if sees_split(which, before_window(shape, given, token[0]), given.window):
            attend_split(shape, given, rows, which, scratch.scores, state, behind)
            for r in T.serial(count):
                fold(shape, state, r, state, count + r)
    for r in T.serial(count):
        if r // per_kv < given.blocks[block, 1]:
            write(shape, state, r, given.out, token[r // per_kv], kv_head * per_kv + r % per_kv)


@T.inline
def _attend_part(shape, given, task, parts, scratch):
    """One KV split of a query block of one token."""
    token = T.alloc_buffer((1,), "int32")
    row = T.alloc_buffer((1,), "int32")
    token[0] = given.blocks[task.block[0], 0]
    first_row = T.meta_var((task.first_part[0] + task.split[0]) * shape.heads)
    row[0] = first_row + task.kv_head[0] * shape.heads_per_kv
    list_start = T.meta_var(given.blocks[task.block[0], 2])
    rows = T.meta_var(QueryRows(shape.heads_per_kv, token, task.kv_head[0], list_start))
    attend_split(shape, given, rows, task.split[0], scratch.scores, parts, row)


@T.inline
def _compute(shape, given, task, parts, scratch):
    """Computes a task that has been found."""
    block = T.meta_var(task.block[0])
    place = T.meta_var(given.place[given.blocks[block, 0]])
    before = T.meta_var(before_window(shape, given, given.blocks[block, 0]))
    if given.blocks[block, 1] > 1 or task.part_count[0] < split_count(place):
        if task.split[0] == 0:
            _attend_block(shape, given, block, task.kv_head[0], scratch)
    elif T.And(task.split[0] < split_count(place), sees_split(task.split[0], before, given.window)):
        _attend_part(shape, given, task, parts, scratch)


@T.inline
def _run_task(shape, fast, given, task, parts, scratch, first_token):
    """Computes the task with the number `task.number[0]`."""
    find_block(shape, given, task)
    task.number[0] = task.number[0] - task.first_part[0] * shape.kv_heads
    task.split[0] = task.number[0] % task.part_count[0]
    task.kv_head[0] = task.number[0] // task.part_count[0]
    if given.blocks[task.block[0], 0] >= first_token:
        _compute(shape, given, task, parts, scratch)
    elif fast is not None:
        _compute(fast, given, task, parts, scratch)


@T.inline
def _fold_parts(shape, given, block, kv_head, first_part, parts):
    """Folds the KV splits of a query block of one token, and writes its result."""
    per_kv = T.meta_var(shape.heads_per_kv)
    token = T.meta_var(given.blocks[block, 0])
    state = T.meta_var(new_softmax(per_kv, shape.head_dim))
    for r in T.unroll(per_kv):
        clear(shape, state, r, given, kv_head * per_kv + r)
    for which in T.serial(split_count(given.place[token])):
        if sees_split(which, before_window(shape, given, token), given.window):
            for r in T.unroll(per_kv):
                fold(
                    *(shape, state, r, parts),
                    (first_part + which) * shape.heads + kv_head * per_kv + r,
                )
    for r in T.unroll(per_kv):
        write(shape, state, r, given.out, token, kv_head * per_kv + r)


@T.inline
def _finish(shape, fast, given, parts, number, first_token):
    """Folds what the tasks of one query block and KV head left, if they left parts."""
    block = T.alloc_buffer((1,), "int32")
    kv_head = T.alloc_buffer((1,), "int32")
    first_part = T.alloc_buffer((1,), "int32")
    part_count = T.alloc_buffer((1,), "int32")
    block[0] = number // shape.kv_heads
    kv_head[0] = number % shape.kv_heads
    find_parts(given, block[0], first_part, part_count)
    token = T.meta_var(given.blocks[block[0], 0])
    if T.And(
        given.blocks[block[0], 1] == 1,
        part_count[0] >= split_count(given.place[token]),
    ):
        if token >= first_token:
            _fold_parts(shape, given, block[0], kv_head[0], first_part[0], parts)
        elif fast is not None:
            _fold_parts(fast, given, block[0], kv_head[0], first_part[0], parts)


@T.inline
def attend(shape, fast, given, first_token):
    """Attention of the tokens from `first_token` on, which is the first one of a query block; and
    of those before it, of shape `fast`, if that is not None."""
    parts = T.meta_var(new_softmax(count_parts(given) * shape.heads, shape.head_dim))
    tasks: T.let[T.int32] = count_parts(given) * shape.kv_heads
    stride: T.let[T.int32] = spread_stride(tasks, given.tokens > given.block_count)
    count: T.let[T.int32] = spread_count(tasks, stride)
    workers: T.let[T.int32] = worker_count(count)
    for worker in T.parallel(workers):
        align_stack()
        task = T.meta_var(new_task())
        scratch = T.meta_var(_new_scratch(fast or shape))
        following = T.alloc_buffer((1,), "int32")
        following[0] = count * worker // workers
        # LLVM would take three times as long for a loop with a known end.
        while following[0] < count * (worker + 1) // workers:
            task.number[0] = spread(following[0], tasks, stride)
            if task.number[0] < tasks:
                _run_task(shape, fast, given, task, parts, scratch, first_token)
            following[0] = following[0] + 1
    if tasks >= MANY:
        for u in T.parallel(given.block_count * shape.kv_heads):
            align_stack()
            _finish(shape, fast, given, parts, u, first_token)
    else:
        for u in T.serial(given.block_count * shape.kv_heads):
            _finish(shape, fast, given, parts, u, first_token)


def attention_kernel(
    shape: Shape, compute: Callable[[Arguments, Buffer], None], *, has_fast: bool
) -> PrimFunc:
    """A kernel that does `compute(arguments, F)`; has_fast: it has the argument F.

    queries     float32 [m, heads * head_dim], rotated, scaled by log2(e) times the scale of scores
    pages       kv_dtype [pages, kv_heads, 2, elements of a block], holding the new tokens already
    place       int32 [m], place of each token in its page list
    blocks      int32 [b, 3]: first token row, number of tokens, start of the page list
    page_ids    int32 [n], the sequences' pages, one list after the other; any page stands for one
                that is not seen
    window      int32 [2]: a token sees the last window[0] tokens, itself included, and the first
                window[1] of its sequence
    sinks       float32 [heads]: learned sinks; there are none unless `learned_sinks`
    first_seen  int32 [m], the first place that each token sees, in place of window[0]; it is there
                if `both_sides`
    F           int32 [1]: the first F[0] tokens are fast
    out         float32 [m, heads * head_dim]

    With `sink_query` a row of `queries` is twice as long. Its second half is the query for the KV
    splits that hold any of the first window[1] tokens.
    """
    heads, kv_heads = shape.heads, shape.kv_heads

    @T.prim_func(private=True, s_tir=True)
    def paged_attention(
        queries: T.handle,
        pages: T.handle,
        place: T.handle,
        blocks: T.handle,
        page_ids: T.handle,
        window: T.handle,
        sinks: T.handle,
        first_seen: T.handle,
        F: T.Buffer((1,), "int32"),
        out: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        num_pages = T.int32()
        b = T.int32()
        n = T.int32()
        Q = T.match_buffer(queries, (m, shape.query_width), "float32")
        P = T.match_buffer(pages, (num_pages, kv_heads, 2, shape.block), shape.kv_dtype)
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (n,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        FIRST = T.match_buffer(first_seen, (m,), "int32")
        O = T.match_buffer(out, (m, heads * shape.head_dim), "float32")
        with T.sblock("root"):
            given = T.meta_var(Arguments(Q, P, AT, B, IDS, W, SINKS, FIRST, O, m, b, n))
            compute(given, F)

    return without(paged_attention, *unread(shape), *(() if has_fast else ("F",)))


@cache
def attention(shape: Shape) -> PrimFunc:
    """Kernel arguments: see `attention_kernel`. F is there if `has_both_products`."""
    head_dim, isa = shape.head_dim, shape.isa
    has_pairs, has_both = has_pair_products(head_dim, isa), has_both_products(head_dim, isa)
    pairs = replace(shape, pairs=True)
    plain, fast = (shape, pairs) if has_both else (pairs if has_pairs else shape, None)

    @T.inline
    def compute(given, F):
        """All tokens."""
        with imported(has_pairs):
            attend(plain, fast, given, F[0] if has_both else 0)

    return attention_kernel(shape, compute, has_fast=has_both)
