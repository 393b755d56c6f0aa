"""What the parts of attention share: sizes, buffers, and which keys a token sees.

Sizes: m new tokens, b query blocks, n page ids, D head_dim, R rows that are computed together.
Every number of a place counts in the sequence's list of pages, where places of evicted pages may be
left out.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.prefetch import LINE_BYTES
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.page_format import block_elements, element_bytes
from mlc_llm.record import record

KV_SPLIT = 8
"""Pages of a KV split."""
SPLIT_KEYS = KV_SPLIT * PAGE


@record()
class Shape:
    """Sizes that all parts of a kernel share."""

    heads: int
    kv_heads: int
    head_dim: int
    isa: Isa
    kv_dtype: str
    sink_query: bool = False
    """Sinks are seen with a query of their own."""
    score_cap: float | None = None
    """A score s becomes cap * tanh(s / cap), before the softmax."""
    learned_sinks: bool = False
    """Each query head has a score more, without a value."""
    both_sides: bool = False
    """`Arguments.first_seen` says where the window of a token begins."""
    pairs: bool = False
    """Products are of pairs of bfloat16, in place of float32."""

    @property
    def width(self) -> int:
        """Elements of a head, or tokens, that a product takes at once."""
        return 2 if self.pairs else 1

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.isa.lanes

    @property
    def heads_per_kv(self) -> int:
        """Query heads that read the same keys and values."""
        return self.heads // self.kv_heads

    @property
    def query_width(self) -> int:
        """Elements of a token's queries; with a window there are two queries, the second for
        sinks."""
        return (2 if self.sink_query else 1) * self.heads * self.head_dim

    @property
    def line(self) -> int:
        """Elements of a page in a cache line."""
        return LINE_BYTES // element_bytes(self.kv_dtype)

    @property
    def block(self) -> int:
        """Elements of the keys, or the values, of a page of one KV head."""
        return block_elements(self.kv_dtype, PAGE, self.head_dim)

    @property
    def has_scales(self) -> bool:
        """Elements of a page are whole numbers; each group of them has a scale."""
        return self.kv_dtype == "int8"


@record(eq=False)
class Arguments:
    """The buffers of a kernel's arguments; `attention.attention_kernel` describes them."""

    queries: Buffer
    pages: Buffer
    place: Buffer
    blocks: Buffer
    page_ids: Buffer
    window: Buffer
    sinks: Buffer
    first_seen: Buffer
    out: Buffer
    tokens: Expr
    """m"""
    block_count: Expr
    """b"""
    id_count: Expr
    """n"""


@record(eq=False)
class QueryRows:
    """Rows that are computed together: query heads of one KV head times tokens of one sequence.

    Row r is query head `kv_head * heads_per_kv + r % heads_per_kv` of token
    `token[r // heads_per_kv]`.
    """

    count: int
    """R"""
    token: Buffer
    """int32 [R / heads_per_kv]: rows of `Arguments.queries`, in the order of their places."""
    kv_head: Expr
    list_start: Expr
    """Where the sequence's list of pages begins in `page_ids`."""


@record(eq=False)
class Split:
    """The KV split that is computed, each number int32 [1]."""

    first: Buffer
    """Its first page."""
    last: Buffer
    """The page of the newest token."""
    count: Buffer
    """How many of its pages are not behind the last one."""
    newest: Buffer
    """Place of the last token of the rows."""
    oldest: Buffer
    """Place of the first token of the rows."""
    before_oldest: Buffer
    """`before_window` of that token."""
    before_newest: Buffer
    """`before_window` of the last token."""


def unread(shape: Shape) -> tuple[str, ...]:
    """The buffers of arguments that a kernel of this shape has not."""
    sinks = () if shape.learned_sinks else ("SINKS",)
    return sinks if shape.both_sides else (*sinks, "FIRST")


def new_split() -> Split:
    """Scratch for a split, with nothing in it."""
    return Split(*(T.alloc_buffer((1,), "int32") for _ in range(7)))


def before_window(shape: Shape, given: Arguments, token: Index) -> Expr:
    """The place before the first one in the window of a token."""
    if shape.both_sides:
        return given.first_seen[token] - 1
    return given.place[token] - given.window[0]


def is_seen(first: Index, count: Index, before: Expr, window: Buffer) -> Expr:
    """Whether a token with that `before_window`, or one after it, sees any of `count` places from
    `first` on that are before it."""
    return T.Or(first < window[1], first + count > before + 1)


def sees_split(which: Index, before: Expr, window: Buffer) -> Expr:
    """`is_seen` for the KV split with that number."""
    return is_seen(which * KV_SPLIT * PAGE, SPLIT_KEYS, before, window)


def split_count(place: Expr) -> Expr:
    """How many KV splits a token at that place has before it, its own one included."""
    return place // SPLIT_KEYS + 1


def query_column(shape: Shape, first: Index, window: Buffer) -> Expr:
    """The column of `Arguments.queries` where the queries begin that see the KV split with place
    `first` as its first."""
    if not shape.sink_query:
        return T.int32(0)
    return T.Select(first < window[1], T.int32(shape.heads * shape.head_dim), T.int32(0))
