"""States of heads that change only every CHUNK tokens of a sequence (Yang et al. 2024, in the form
that serves prompts and decoding alike).

A head has a state S [head_dim, size]. Each token t lets it decay and adds to it:

    S = d_t * S + c_t k_t^T         change c_t [head_dim], key k_t [size]

A chunk begins at each CHUNK-th token of a sequence, however the steps cut it. Within it the state
at its begin, the base B, stays as it is; keys and changes of the tokens are kept beside it:

    S = E * B + sum over the chunk's tokens s of W_s c_s k_s^T
    E    product of all decays of the chunk up to now
    W_s  product of the decays behind token s

So S x, for whatever x, is E * (B x) + sum of W_s (k_s . x) c_s. A token of a batch reads its base
once and writes nothing of it; tokens of a prompt read it together. The chunk's last token makes
the next base of it.

Each row of a base has a lane of a vector. So nothing is added across lanes, and `wide` rows, a
block, go through the tokens while they lie in the nearest cache. In memory a base is

    float32 [blocks, size, wide]
"""

from __future__ import annotations

from math import gcd
from typing import Any

from tvm.script import tirx as T

from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.types import Buffer, Expr, Index
from mlc_llm.library.state_format import CHUNK
from mlc_llm.record import record

LARGE = 2**15
"""Numbers of all states that are read, each time counted, from which on a second thread is worth
its wake-up."""

FORGOTTEN = 1e-30
"""Below it W and E are 0: processors take long for the numbers that lie below 1e-38."""


@record()
class Blocks:
    """How the bases of heads lie."""

    head_dim: int
    size: int
    machine: int
    """Lanes of a vector of the machine: the sums of a block fit its registers."""

    @property
    def lanes(self) -> int:
        return gcd(self.head_dim, self.machine)

    @property
    def vectors(self) -> int:
        """Of a block."""
        return gcd(self.head_dim // self.lanes, 4)

    @property
    def wide(self) -> int:
        """Rows of a block."""
        return self.lanes * self.vectors

    @property
    def count(self) -> int:
        """Blocks of a head."""
        return self.head_dim // self.wide

    @property
    def together(self) -> int:
        """Vectors x that a block is multiplied with side by side: their sums fill the half of the
        registers, of which machines with 8 lanes have 16, and others 32."""
        return (8 if self.machine == 8 else 16) // self.vectors

    def shape(self, bases: Index, heads: int) -> tuple[Index, ...]:
        """Of all bases, as they lie."""
        return bases, heads, self.count, self.size, self.wide

    def lane(self, u: Index) -> Expr:
        """Vector u of a block."""
        return lanes_at(u * self.lanes, self.lanes)

    def row(self, p: Index, u: Index, start: Index = 0) -> Expr:
        """Vector u of block p, in the rows of a head that begin at `start`."""
        return lanes_at(start + p * self.wide + u * self.lanes, self.lanes)


@record(eq=False)
class Memory:
    """What a task keeps of a chunk of one head."""

    keys: Buffer
    """[CHUNK, size]; they are there when the chunk ends."""
    changes: Buffer
    """[CHUNK, head_dim]."""
    weights: Buffer
    """[CHUNK]: W behind the newest token."""
    left: Buffer
    """[CHUNK + 1]: E behind the token at each place, and, last, behind the newest token."""
    dots: Buffer
    """[CHUNK, reads, CHUNK]: W_s (k_s . x), of the vectors x of the token at each place."""
    seen: Buffer
    """[CHUNK * reads, wide]: B x of them."""
    sums: Buffer
    result: Buffer
    """[vectors, lanes]: S x of a token, for a block."""
    decay: Buffer
    """[1]: of the token that is prepared."""
    steps: Buffer
    """[CHUNK]: a number of the token at each place."""

    @staticmethod
    def of(blocks: Blocks, reads: int) -> Memory:
        """reads: vectors x of a token."""

        def new(*shape: int) -> Buffer:
            return T.alloc_buffer(shape, "float32")

        return Memory(
            new(CHUNK, blocks.size), new(CHUNK, blocks.head_dim), new(CHUNK), new(CHUNK + 1),
            new(CHUNK, reads, CHUNK), new(CHUNK * reads, blocks.wide),
            new(blocks.together, blocks.vectors, blocks.lanes),
            new(blocks.vectors, blocks.lanes), new(1), new(CHUNK),
        )  # fmt: skip


@record(eq=False)
class Chunks:
    """The states of a kernel, and what its tokens do with them."""

    blocks: Blocks
    reads: int
    """Vectors x of a token, each of which its state is multiplied with."""
    rows: Buffer
    """`state_rows` (`library/signatures.py`)."""
    keys: Buffer
    """[slots, key heads, CHUNK, size]; like `dots` from `chunk_keys.py`."""
    dots: Buffer
    """[m, key heads, reads, CHUNK]."""
    changes: Buffer
    """[slots, heads, CHUNK, head_dim]."""
    numbers: Buffer
    """[slots, heads, NUMBERS]."""
    bases: Buffer
    step: Any
    """key_head(h): of a head. prepare(t, h, at, memory): the token's decay, and what else it has
    for all blocks. x(t, h, which, i): number i of a vector x. key(t, h, i, lanes): numbers of its
    key. token(t, h, at, p, memory): for block p the token's change, and what it gives."""


def place(rows: Buffer, row: Index) -> Expr:
    """Tokens of the first chunk of a row that lie before it."""
    return rows[row, 6]


@T.inline
def _weigh(chunks, t, h, at, memory):
    """W and E behind the token at a place, and its dots times W."""
    lane = T.meta_var(lanes_at(0, CHUNK))
    memory.left[CHUNK] = memory.left[CHUNK] * memory.decay[0]
    memory.left[CHUNK] = T.if_then_else(
        memory.left[CHUNK] < T.float32(FORGOTTEN), T.float32(0), memory.left[CHUNK]
    )
    memory.left[at] = memory.left[CHUNK]
    memory.weights[lane] = memory.weights[lane] * splat(memory.decay[0], CHUNK)
    memory.weights[lane] = T.Select(
        memory.weights[lane] < fsplat(FORGOTTEN, CHUNK), fsplat(0.0, CHUNK), memory.weights[lane]
    )
    memory.weights[at] = T.float32(1)
    for which in T.unroll(chunks.reads):
        memory.dots[at, which, lane] = (
            memory.weights[lane] * chunks.dots[t, chunks.step.key_head(h), which, lane]
        )


@T.inline
def state_times(blocks, memory, p, at, reads, which, count):
    """result = block p of S x, of the token at a place, whose state has the changes of the first
    `count` ones."""
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    for u in T.unroll(blocks.vectors):
        memory.result[u, lane] = (
            splat(memory.left[at], blocks.lanes) * memory.seen[at * reads + which, blocks.lane(u)]
        )
    for s in T.serial(count):
        for u in T.unroll(blocks.vectors):
            memory.result[u, lane] = (
                memory.result[u, lane]
                + splat(memory.dots[at, which, s], blocks.lanes)
                * memory.changes[s, blocks.row(p, u)]
            )


@T.inline
def _multiply(blocks, bases, at, first, count, x, memory):
    """seen[first:], of a block times `count` vectors x(c, i). at: base, head and block."""
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    for c in T.unroll(count):
        for u in T.unroll(blocks.vectors):
            memory.sums[c, u, lane] = fsplat(0.0, blocks.lanes)
    for i in T.serial(blocks.size):
        for c in T.unroll(count):
            for u in T.unroll(blocks.vectors):
                memory.sums[c, u, lane] = memory.sums[c, u, lane] + bases[
                    at[0], at[1], at[2], i, blocks.lane(u)
                ] * splat(x(first + c, i), blocks.lanes)
    for c in T.unroll(count):
        for u in T.unroll(blocks.vectors):
            memory.seen[first + c, blocks.lane(u)] = memory.sums[c, u, lane]


@T.inline
def _see(chunks, base, h, p, t, begin, count, memory):
    """Block p of a base times the vectors of `count` tokens, of which t lies at place `begin`."""
    together, reads = T.meta_var((chunks.blocks.together, chunks.reads))
    x = T.meta_var(lambda c, i: chunks.step.x(t + c // reads - begin, h, c % reads, i))
    first, number = T.meta_var((begin * reads, count * reads))
    at = T.meta_var((base, h, p))
    for c in T.serial(number // together):
        _multiply(chunks.blocks, chunks.bases, at, first + c * together, together, x, memory)
    for c in T.serial(number % together // reads):
        rest = T.meta_var(first + number // together * together + c * reads)
        _multiply(chunks.blocks, chunks.bases, at, rest, reads, x, memory)


@T.inline
def _fold(blocks, bases, old, new, h, p, memory):
    """Block p of the base behind a chunk."""
    lane = T.meta_var(lanes_at(0, blocks.lanes))
    weighed = T.alloc_buffer((CHUNK, blocks.lanes), "float32")
    for u in T.unroll(blocks.vectors):
        for s in T.unroll(CHUNK):
            weighed[s, lane] = (
                splat(memory.weights[s], blocks.lanes) * memory.changes[s, blocks.row(p, u)]
            )
        for i in T.serial(blocks.size):
            memory.sums[0, 0, lane] = (
                splat(memory.left[CHUNK], blocks.lanes) * bases[old, h, p, i, blocks.lane(u)]
            )
            for s in T.unroll(CHUNK):
                memory.sums[0, 0, lane] = memory.sums[0, 0, lane] + weighed[s, lane] * splat(
                    memory.keys[s, i], blocks.lanes
                )
            bases[new, h, p, i, blocks.lane(u)] = memory.sums[0, 0, lane]


@T.inline
def _find_keys(chunks, slot, h, t, begin, memory):
    """All keys of a chunk."""
    lanes = T.meta_var(gcd(chunks.blocks.size, 16))
    for s in T.serial(CHUNK):
        for v in T.unroll(chunks.blocks.size // lanes):
            at = T.meta_var(lanes_at(v * lanes, lanes))
            if s < begin:
                memory.keys[s, at] = chunks.keys[slot, chunks.step.key_head(h), s, at]
            else:
                memory.keys[s, at] = chunks.step.key(t + s - begin, h, v * lanes, lanes)


@T.inline
def _part(chunks, slot, base, new, h, t, begin, count, memory):
    """`count` tokens of a chunk, of which t lies at place `begin`; the keys before it are in a
    slot."""
    if begin == 0:
        memory.left[CHUNK] = T.float32(1)
        memory.weights[lanes_at(0, CHUNK)] = fsplat(0.0, CHUNK)
    for j in T.serial(count):
        chunks.step.prepare(t + j, h, begin + j, memory)
        _weigh(chunks, t + j, h, begin + j, memory)
    if begin + count == CHUNK:
        _find_keys(chunks, slot, h, t, begin, memory)
    for p in T.serial(chunks.blocks.count):
        _see(chunks, base, h, p, t, begin, count, memory)
        for j in T.serial(count):
            chunks.step.token(t + j, h, begin + j, p, memory)
        if begin + count == CHUNK:
            _fold(chunks.blocks, chunks.bases, base, new, h, p, memory)


@T.inline
def _load(chunks, row, h, memory):
    """What the chunk has of tokens before a row."""
    slot = T.meta_var(chunks.rows[row, 2])
    memory.left[CHUNK] = chunks.numbers[slot, h, CHUNK]
    memory.weights[lanes_at(0, CHUNK)] = chunks.numbers[slot, h, lanes_at(0, CHUNK)]
    for s in T.serial(place(chunks.rows, row)):
        for i in T.vectorized(chunks.blocks.head_dim):
            memory.changes[s, i] = chunks.changes[slot, h, s, i]


@T.inline
def _save(chunks, row, h, memory):
    """What the chunk has behind a row."""
    slot = T.meta_var(chunks.rows[row, 3])
    chunks.numbers[slot, h, CHUNK] = memory.left[CHUNK]
    chunks.numbers[slot, h, lanes_at(0, CHUNK)] = memory.weights[lanes_at(0, CHUNK)]
    for s in T.serial((place(chunks.rows, row) + chunks.rows[row, 1]) % CHUNK):
        for i in T.vectorized(chunks.blocks.head_dim):
            chunks.changes[slot, h, s, i] = memory.changes[s, i]


@T.inline
def _head(chunks, h, r):
    """A head of all rows, each of which has tokens."""
    memory = T.meta_var(Memory.of(chunks.blocks, chunks.reads))
    for row in T.serial(r):
        before, count = T.meta_var((place(chunks.rows, row), chunks.rows[row, 1]))
        _load(chunks, row, h, memory)
        for c in T.serial((before + count + CHUNK - 1) // CHUNK):
            begin = T.meta_var(T.if_then_else(c == 0, before, 0))
            first = T.meta_var(c * CHUNK + begin - before)
            _part(
                *(chunks, chunks.rows[row, 2]),
                *(chunks.rows[row, T.if_then_else(c == 0, 4, 5)], chunks.rows[row, 5], h),
                *(chunks.rows[row, 0] + first, begin, T.min(CHUNK - begin, count - first), memory),
            )
        _save(chunks, row, h, memory)


@T.inline
def each_head(chunks, heads, m, r):
    """All heads."""
    numbers = T.meta_var(heads * chunks.blocks.head_dim * chunks.blocks.size)
    # Known where one token is enough: then there is no other loop to compile.
    is_large = T.meta_var(True if numbers >= LARGE else m * numbers >= LARGE)
    if is_large:
        for h in T.parallel(heads):
            _head(chunks, h, r)
    else:
        for h in T.serial(heads):
            _head(chunks, h, r)
