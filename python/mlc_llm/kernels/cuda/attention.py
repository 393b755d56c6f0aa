"""Causal attention of new tokens over paged keys and values, on tensor cores.

    a block for each query block and KV head; 16 rows of queries for a warp (`attention_tiles.py`)
    in larger steps:
        for each share, for each KV split of it that is seen:
            keys and values of the next one are copied to shared memory meanwhile
            each warp folds the split into the sums of its rows
        out = what all shares gave, folded in order / the sum of its weights
    in steps of up to FEW tokens, which have blocks for shares too:
        each warp has a share of its own, and `join` does the rest

A KV split is a page: 16 places from a multiple of 16 on. Split i belongs to share i % SHARES. How a
row is computed depends on nothing but its own place, so its bits are the same in any step. Queries
have the factor log2(e) (`Heads.scale`), so powers are those of 2.

Behind a window of an engine, the splits with the first tokens of a sequence have queries of their
own. They belong to share 0, come before its others, and are copied one after the other.
"""

from __future__ import annotations

from functools import cache

from tvm.script import tirx as T
from tvm.tirx import PrimFunc

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.arguments import without
from mlc_llm.kernels.cuda.attention_rows import Given, Rows
from mlc_llm.kernels.cuda.attention_sizes import FEW, SHARES, STATE, Registers, Seen, Sizes
from mlc_llm.kernels.cuda.threads import SCHEDULED, WARP
from mlc_llm.library.page_format import block_elements

_REGISTERS = {"tirx.launch_bounds_min_blocks_per_sm": 2}
"""So many blocks of a multiprocessor leave a thread 255 registers. By itself the compiler takes 32,
and then keeps numbers in memory."""


@cache
def attention(
    heads: int,
    kv_heads: int,
    head_dim: int,
    cap: float | None = None,
    has_sinks: bool = False,
    has_first: bool = False,
    kv_dtype: str = "float16",
    sink_query: bool = False,
) -> PrimFunc:
    """softmax(q k^T) v over what each token sees:

    q             float32 [m, heads * head_dim], as `rope_append` makes them; twice as long with
                  `sink_query`
    pages         kv_dtype [pages, kv_heads, 2, elements of a block] (`library/page_format.py`)
    place, query_blocks, page_ids, window   as in `library/signatures.py`; a query block has up to
                  `Sizes.tokens` tokens
    first_seen    int32 [m]: the first place that a token sees, in the window's stead; it is there
                  only if `has_first`
    sinks         float32 [heads]: of each head a score more, without a value; there are none unless
                  `has_sinks`
    shares        float32 [FEW at most, heads, SHARES, STATE + head_dim]: what `join` reads
    out           float32 [m, heads * head_dim], which only steps of more than FEW tokens write

    sink_query: the first window[1] tokens of a sequence are seen with the second half of a row.
    cap: a score s becomes cap * tanh(s / cap). head_dim: a multiple of 8.
    """
    assert head_dim % 8 == 0 and heads % kv_heads == 0
    sizes = Sizes(head_dim, heads // kv_heads, kv_dtype == "int8")
    elements = block_elements(kv_dtype, PAGE, head_dim)
    width = heads * head_dim
    rows = Rows(sizes, cap, has_sinks, width if sink_query else 0)

    @T.prim_func(private=True)
    def paged_attention(
        q: T.handle, pages: T.handle, place: T.handle, query_blocks: T.handle, page_ids: T.handle,
        window: T.handle, first_seen: T.handle, sinks: T.handle, shares: T.handle, out: T.handle,
    ):  # fmt: skip
        T.func_attr(SCHEDULED)
        m = T.int32()
        few = T.int32()
        b = T.int32()
        n = T.int32()
        ids = T.int32()
        Q = T.match_buffer(q, (m, 2 * width if sink_query else width), "float32")
        P = T.match_buffer(pages, (n, kv_heads, 2, elements), kv_dtype)
        AT = T.match_buffer(place, (m,), "int32")
        B = T.match_buffer(query_blocks, (b, 3), "int32")
        IDS = T.match_buffer(page_ids, (ids,), "int32")
        W = T.match_buffer(window, (2,), "int32")
        FIRST = T.match_buffer(first_seen, (m,), "int32")
        SINKS = T.match_buffer(sinks, (heads,), "float32")
        PART = T.match_buffer(shares, (few, heads, SHARES, STATE + head_dim), "float32")
        O = T.match_buffer(out, (m, width), "float32")
        T.device_entry()
        T.attr(_REGISTERS)
        block, kv_head, own = T.cta_id([b, kv_heads, T.Select(m <= FEW, SHARES // sizes.tiles, 1)])
        lane, warp = T.thread_id([WARP, sizes.warps])
        MEM = T.alloc_buffer((sizes.words,), "uint32", scope="shared.dyn", align=128)
        scales = T.alloc_buffer((2,), "float32", scope="local")
        begins = T.alloc_buffer((2,), "int32", scope="local")
        places = T.alloc_buffer((2,), "int32", scope="local")
        seen_window = T.alloc_buffer((2,), "int32", scope="local")
        queries = T.alloc_buffer((rows.kept,), "uint32", scope="local")
        best = T.alloc_buffer((2,), "float32", scope="local")
        total = T.alloc_buffer((4,), "float32", scope="local")
        sums = T.alloc_buffer((sizes.blocks * 4,), "float32", scope="local")
        whole_best = T.alloc_buffer((2,), "float32", scope="local")
        whole_total = T.alloc_buffer((4,), "float32", scope="local")
        whole_sums = T.alloc_buffer(
            (1 if sizes.are_kept else sizes.blocks * 4,), "float32", scope="local"
        )
        regs = T.meta_var(Registers(queries, scales, begins, places, best, total, sums))
        whole = T.meta_var(
            Registers(queries, scales, begins, places, whole_best, whole_total, whole_sums)
        )
        seen = T.meta_var(
            Seen(
                *(P, IDS, B[block, 2], kv_head, seen_window),
                FIRST if has_first else None,
                sink_query,
            )
        )
        given = T.meta_var(Given(Q, AT, B, block, kv_head))
        for i in T.unroll(2):
            seen_window[i] = W[i]
        if m <= FEW:
            rows.few(given, PART, own, seen, MEM, lane, warp, regs)
        else:
            rows.many(given, SINKS, O, seen, MEM, lane, warp, regs, whole)

    unread = [*([] if has_sinks else ["SINKS"]), *([] if has_first else ["FIRST"])]
    return without(paged_attention, *unread)
