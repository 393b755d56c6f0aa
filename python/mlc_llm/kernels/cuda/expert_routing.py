"""Which experts a token gets, and where its rows stand among those of all tokens.

choose:   a warp for each token
    experts = those with the largest scores              of two that are as large the first one
    weights = e^score of each, divided by the sum over all experts, or over the chosen ones;
              or sigmoid(score) of each, divided by the sum over the chosen ones or not
sort:     one block
    expert rows = the pairs of a token and one of its choices, sorted by expert, then by token
    chunks = up to ROWS of them of one expert, which a product computes together
collect:  a block for each token
    y = sum over its choices of weight * x[expert row of the choice]

The chosen experts of a token are in the order of their scores, so a sum does not depend on the
other tokens.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.activations import sigmoid
from mlc_llm.kernels.cuda.matmul import ROWS
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP, block_first, block_size, grid

_TAKEN = -3.4e38
CHUNK = 3
"""Numbers of a chunk: the expert, its first expert row, and the end of them."""


@T.inline
def take_best(left, best, place, lane, turns, scratch):
    """The largest of what is left in the threads of a warp, and its number; then it is taken."""
    best[0] = T.float32(_TAKEN)
    place[0] = lane
    for i in T.unroll(turns):
        if left[i] > best[0]:
            best[0] = left[i]
            place[0] = i * WARP + lane
    block_first(best, place, lane, 1, scratch)
    for i in T.unroll(turns):
        if place[0] == i * WARP + lane:
            left[i] = T.float32(_TAKEN)


@cache
def choose(
    experts: int, width: int, chosen: int, *, of_chosen: bool, has_bias: bool = False
) -> PrimFunc:
    """Kernel arguments. of_chosen: the weights of the chosen experts sum to 1.

    scores       float32 [m, width], experts are the first columns
    bias         float32 [experts], added to the scores; only if `has_bias`
    weights      float32 [m, chosen]
    choice       int32 [m, chosen]: experts
    """
    turns = -(-experts // WARP)

    @T.prim_func(private=True)
    def choose_experts(scores: T.handle, bias: T.handle, weights: T.handle, choice: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        S = T.match_buffer(scores, (m, width), "float32")
        BIAS = T.match_buffer(bias, (experts,), "float32")
        W = T.match_buffer(weights, (m, chosen), "float32")
        C = T.match_buffer(choice, (m, chosen), "int32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        lane = T.thread_id([WARP])
        score = T.alloc_buffer((turns,), "float32", scope="local")
        left = T.alloc_buffer((turns,), "float32", scope="local")
        top = T.alloc_buffer((chosen,), "float32", scope="local")
        best = T.alloc_buffer((1,), "float32", scope="local")
        place = T.alloc_buffer((1,), "int32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((1,), "float32", scope="shared")
        if row < m:
            for i in T.unroll(turns):
                score[i] = T.float32(_TAKEN)
                if i * WARP + lane < experts:
                    score[i] = S[row, i * WARP + lane]
                    if has_bias:
                        score[i] = score[i] + BIAS[i * WARP + lane]
                left[i] = score[i]
            for c in T.unroll(chosen):
                take_best(left, best, place, lane, turns, scratch)
                top[c] = best[0]
                if lane == 0:
                    C[row, c] = T.min(place[0], experts - 1)
            total[0] = T.float32(0)
            if of_chosen:
                for c in T.unroll(chosen):
                    total[0] = total[0] + T.exp(top[c] - top[0])
            else:
                for i in T.unroll(turns):
                    if i * WARP + lane < experts:
                        total[0] = total[0] + T.exp(score[i] - top[0])
                total[0] = T.cuda.warp_sum(total[0])
            if lane == 0:
                for c in T.unroll(chosen):
                    W[row, c] = T.exp(top[c] - top[0]) / total[0]

    return choose_experts if has_bias else without(choose_experts, "BIAS")


@cache
def choose_by_sigmoid(
    experts: int, width: int, chosen: int, *, of_chosen: bool, has_bias: bool, scale: float
) -> PrimFunc:
    """Kernel arguments as of `choose`; the bias counts in the choice alone. Weights are times
    `scale`."""
    turns = -(-experts // WARP)

    @T.prim_func(private=True)
    def choose_experts(scores: T.handle, bias: T.handle, weights: T.handle, choice: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        S = T.match_buffer(scores, (m, width), "float32")
        BIAS = T.match_buffer(bias, (experts,), "float32")
        W = T.match_buffer(weights, (m, chosen), "float32")
        C = T.match_buffer(choice, (m, chosen), "int32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        lane = T.thread_id([WARP])
        left = T.alloc_buffer((turns,), "float32", scope="local")
        top = T.alloc_buffer((chosen,), "float32", scope="local")
        best = T.alloc_buffer((1,), "float32", scope="local")
        place = T.alloc_buffer((1,), "int32", scope="local")
        total = T.alloc_buffer((1,), "float32", scope="local")
        scratch = T.alloc_buffer((1,), "float32", scope="shared")
        if row < m:
            for i in T.unroll(turns):
                left[i] = T.float32(_TAKEN)
                if i * WARP + lane < experts:
                    left[i] = sigmoid(S[row, i * WARP + lane])
                    if has_bias:
                        left[i] = left[i] + BIAS[i * WARP + lane]
            total[0] = T.float32(0)
            for c in T.unroll(chosen):
                take_best(left, best, place, lane, turns, scratch)
                place[0] = T.min(place[0], experts - 1)
                top[c] = sigmoid(S[row, place[0]])
                total[0] = total[0] + top[c]
                if lane == 0:
                    C[row, c] = place[0]
            if not of_chosen:
                total[0] = T.float32(1)
            if lane == 0:
                for c in T.unroll(chosen):
                    W[row, c] = top[c] / total[0] * T.float32(scale)

    return choose_experts if has_bias else without(choose_experts, "BIAS")


@cache
def sort(experts: int, chosen: int) -> PrimFunc:
    """Kernel arguments:

    choice       int32 [m, chosen]
    expert_rows  int32 [m, chosen]: of each choice
    tokens       int32 [m * chosen]: of each expert row
    owners       int32 [m * chosen]: the expert of each
    chunks       int32 [n, CHUNK]; there are enough, the others are empty
    """
    threads = block_size(experts)

    @T.prim_func(private=True)
    def sort_rows(
        choice: T.handle,
        expert_rows: T.handle,
        tokens: T.handle,
        owners: T.handle,
        chunks: T.handle,
    ):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        n = T.int32()
        C = T.match_buffer(choice, (m, chosen), "int32")
        R = T.match_buffer(expert_rows, (m, chosen), "int32")
        TOKENS = T.match_buffer(tokens, (rows,), "int32")
        OWNERS = T.match_buffer(owners, (rows,), "int32")
        CHUNKS = T.match_buffer(chunks, (n, CHUNK), "int32")
        T.device_entry()
        block = T.cta_id([1])
        thread = T.thread_id([threads])
        starts = T.alloc_buffer((experts + 1,), "int32", scope="shared")
        at = T.alloc_buffer((2,), "int32", scope="local")
        for turn in T.serial(T.ceildiv(experts, threads)):
            if turn * threads + thread < experts:
                at[0] = block
                for i in T.serial(rows):
                    if C[i // chosen, i % chosen] == turn * threads + thread:
                        at[0] = at[0] + 1
                starts[turn * threads + thread + 1] = at[0]
        T.cuda.cta_sync()
        if thread == 0:
            starts[0] = 0
            at[1] = 0
            for one in T.serial(experts):
                starts[one + 1] = starts[one] + starts[one + 1]
                for turn in T.serial(T.ceildiv(starts[one + 1] - starts[one], ROWS)):
                    CHUNKS[at[1], 0] = one
                    CHUNKS[at[1], 1] = starts[one] + turn * ROWS
                    CHUNKS[at[1], 2] = T.min(starts[one] + (turn + 1) * ROWS, starts[one + 1])
                    at[1] = at[1] + 1
            for left in T.serial(n - at[1]):
                for i in T.unroll(CHUNK):
                    CHUNKS[at[1] + left, i] = 0
        T.cuda.cta_sync()
        for turn in T.serial(T.ceildiv(experts, threads)):
            e: T.let[T.int32] = turn * threads + thread
            if e < experts:
                at[0] = starts[e]
                for i in T.serial(rows):
                    if C[i // chosen, i % chosen] == e:
                        R[i // chosen, i % chosen] = at[0]
                        TOKENS[at[0]] = i // chosen
                        OWNERS[at[0]] = e
                        at[0] = at[0] + 1

    return sort_rows


@cache
def collect(width: int, chosen: int) -> PrimFunc:
    """Kernel of (weights [m, chosen], expert_rows [m, chosen], x [rows, width], y [m, width])."""
    threads = block_size(width)

    @T.prim_func(private=True)
    def collect_rows(weights: T.handle, expert_rows: T.handle, x: T.handle, y: T.handle):
        T.func_attr(SCHEDULED)
        m = T.int32()
        rows = T.int32()
        W = T.match_buffer(weights, (m, chosen), "float32")
        R = T.match_buffer(expert_rows, (m, chosen), "int32")
        X = T.match_buffer(x, (rows, width), "float32")
        Y = T.match_buffer(y, (m, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(m)])
        thread = T.thread_id([threads])
        total = T.alloc_buffer((1,), "float32", scope="local")
        if row < m:
            for part in T.serial(T.ceildiv(width, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < width:
                    total[0] = T.float32(0)
                    for c in T.unroll(chosen):
                        total[0] = total[0] + W[row, c] * X[R[row, c], i]
                    Y[row, i] = total[0]

    return collect_rows


@cache
def add_own_bias(experts: int, columns: int, width: int, first: int) -> PrimFunc:
    """Kernel of (owners [rows], bias [experts, columns], x [rows, width]), which adds to the
    columns of x from `first` on the bias of the row's expert."""
    threads = block_size(columns)

    @T.prim_func(private=True)
    def add_biases(owners: T.handle, bias: T.handle, x: T.handle):
        T.func_attr(SCHEDULED)
        rows = T.int32()
        OWNERS = T.match_buffer(owners, (rows,), "int32")
        BIAS = T.match_buffer(bias, (experts, columns), "float32")
        X = T.match_buffer(x, (rows, width), "float32")
        T.device_entry()
        row = T.cta_id([grid(rows)])
        thread = T.thread_id([threads])
        if row < rows:
            for part in T.serial(T.ceildiv(columns, threads)):
                i: T.let[T.int32] = part * threads + thread
                if i < columns:
                    X[row, first + i] = X[row, first + i] + BIAS[OWNERS[row], i]

    return add_biases
