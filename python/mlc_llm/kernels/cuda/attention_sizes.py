"""How attention is laid out: sizes, and what a warp and its rows have."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.kernels.page_bytes import scales_at
from mlc_llm.kernels.types import Buffer, Expr
from mlc_llm.library.page_format import GROUP, SCALE_BYTES
from mlc_llm.record import record

FEW = 64
"""Tokens of a small step. There are blocks enough in a larger one."""
STATE = 2
"""Numbers of a share beside its elements: the largest score, and the sum of the weights."""
SPLIT = PAGE
"""Places of a KV split."""
SHARES = 8
"""Split i belongs to share i % SHARES, which is summed up by itself."""
TILE = 16
"""Rows of queries of a warp."""
COLUMNS = 8
"""Elements of a result that an instruction of the tensor cores computes."""
MOST_WARPS = 4
MOST_BLOCKS = 16
"""Of COLUMNS elements that a warp computes: its registers hold their sums."""
MOST_KEPT = 8
"""Steps of 16 elements of queries that registers hold."""
LOWEST = -3.4e38
"""A score that takes no part in a softmax."""
LOG2E = 1.4426950408889634
UNIT = 2.0**14
"""Weights are multiplied by it, which cancels out at the end."""


@record()
class Sizes:
    """How a head is laid out in shared memory, and how warps share it. `group`: heads of a KV
    head. has_bytes: pages hold bytes with scales."""

    head_dim: int
    group: int
    has_bytes: bool = False

    @property
    def parts(self) -> int:
        """Warps that share the elements of a result; each finds the scores by itself."""
        return -(-self.head_dim // (MOST_BLOCKS * COLUMNS))

    @property
    def tiles(self) -> int:
        """Tiles of a block."""
        return max(1, MOST_WARPS // self.parts)

    @property
    def warps(self) -> int:
        return self.tiles * self.parts

    @property
    def rows(self) -> int:
        """Rows of a block."""
        return self.tiles * TILE

    @property
    def tokens(self) -> int:
        """Of a query block."""
        return max(1, self.rows // self.group)

    @property
    def steps(self) -> int:
        """Of 16 elements, the last one filled up with zeros."""
        return -(-self.head_dim // 16)

    @property
    def are_kept(self) -> bool:
        """Registers hold the queries; else they are read from shared memory for each split."""
        return self.steps <= MOST_KEPT

    @property
    def stride(self) -> int:
        """Words of a row; eight rows that are read at once lie in different banks."""
        return 8 * self.steps + 4

    @property
    def blocks(self) -> int:
        """Blocks of COLUMNS elements that a warp computes: an even number."""
        pairs = -(-self.head_dim // (2 * COLUMNS))
        return 2 * -(-pairs // self.parts)

    @property
    def stage(self) -> int:
        """Words of a split: keys, then values."""
        return 2 * SPLIT * self.stride

    def queries(self, rows: int) -> int:
        """Words of the planes of so many rows, and of their scales."""
        return 2 * rows * self.stride + rows

    @property
    def words(self) -> int:
        """Words of shared memory, for either way to share the work."""
        together = self.queries(self.rows) + 2 * self.stage
        return max(together, self.queries(TILE) + 2 * self.stage * self.tiles)


@record(eq=False)
class Seen:
    """What rows see, and where it lies; `attention` describes the buffers."""

    pages: Buffer
    page_ids: Buffer
    first_page: Expr
    kv_head: Expr
    window: Buffer
    """Registers: both numbers of the window."""
    first_seen: Buffer | None
    """Of each token, in the window's stead."""
    sinks_apart: bool = False
    """Splits with the first tokens of a sequence have queries of their own, and come before all
    others."""

    def scale(self, page: Expr, kind: Expr, row: Expr, element: Expr, head_dim: int) -> Expr:
        """float32: of an element of a token in a page of bytes (`library/page_format.py`)."""
        at = scales_at(PAGE, head_dim, element // GROUP, row)
        low, high = (
            T.cast(T.cast(self.pages[page, self.kv_head, kind, at + i], "uint8"), "uint32")
            for i in range(SCALE_BYTES)
        )
        bits = T.bitwise_or(T.shift_left(low, T.uint32(16)), T.shift_left(high, T.uint32(24)))
        return T.reinterpret(bits, dtype="float32")

    def begin(self, places: Buffer, token: Expr) -> Expr:
        """The first place that a token sees, but for those at the beginning of its sequence."""
        if self.first_seen is not None:
            return self.first_seen[token]
        return places[token] - self.window[0] + 1

    def sees(self, t: Expr, begin: Expr, place: Expr) -> Expr:
        """Whether a token at `place` sees place t."""
        return T.And(t <= place, self._near(t, t, begin))

    def sees_split(self, split: Expr, begin: Expr, last: Expr) -> Expr:
        """Whether one of some tokens may see it. begin: of the first one; last: the place of the
        last one."""
        start = split * SPLIT
        seen = T.And(start <= last, self._near(start, start + (SPLIT - 1), begin))
        return T.And(seen, split >= self.sink_splits()) if self.sinks_apart else seen

    def sink_splits(self) -> Expr:
        """How many splits have first tokens, which are seen by all that come later."""
        return T.ceildiv(self.window[1], SPLIT)

    def _near(self, first: Expr, last: Expr, begin: Expr) -> Expr:
        if self.first_seen is not None:
            return T.Not(last < begin)
        return T.Or(first < self.window[1], last >= begin)


@record(eq=False)
class Registers:
    """Of a thread. begin, place, best: those of rows g and g + 8 of the tile."""

    queries: Buffer
    scales: Buffer
    begin: Buffer
    place: Buffer
    best: Buffer
    total: Buffer
    sums: Buffer
