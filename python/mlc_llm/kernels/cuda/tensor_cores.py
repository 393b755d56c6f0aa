"""Instructions of a warp for tensor cores, and for copies into shared memory.

Fragments are those of "Matrix Fragments for mma.m16n8k16" (PTX ISA): with g = lane / 4 and
t = lane % 4 a thread has of 16 rows of the first operand the pairs (row, column) (g, 2 t),
(g + 8, 2 t), (g, 2 t + 8), (g + 8, 2 t + 8); of 8 columns of the second one the pairs (2 t, g) and
(2 t + 8, g), one number below the other; of the sums (g, 2 t), (g, 2 t + 1), and rows g + 8.
"""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.types import Buffer, Expr

_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
_LOAD = "ldmatrix.sync.aligned.m8n8.x4.shared.b16"
_LOAD_TURNED = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"
_COPY = "cp.async.cg.shared.global"
_COPY_FEW = "cp.async.ca.shared.global"
COPIED = 16
"""Bytes of a copy; where it begins on both sides is a multiple."""


@T.inline
def mma(d, at, a, of_a, b, of_b):
    """d[at:at + 4] += 16 rows of a times 8 columns of b."""
    T.ptx[_MMA](
        *[d[at + i] for i in range(4)],
        *[a[of_a + i] for i in range(4)],
        *[b[of_b + i] for i in range(2)],
        *[d[at + i] for i in range(4)],
    )


@T.inline
def load_matrices(words, at, place):
    """words[at:at + 4]: of four 8 x 8 matrices the pair in row lane / 4 and columns 2 (lane % 4).
    place: where the row `lane % 8` of matrix `lane / 8` begins in shared memory."""
    T.ptx[_LOAD](*[words[at + i] for i in range(4)], place)


@T.inline
def load_turned(words, at, place):
    """The same of the transposed matrices: the pair in rows 2 (lane % 4) and column lane / 4."""
    T.ptx[_LOAD_TURNED](*[words[at + i] for i in range(4)], place)


@T.inline
def copy(target, source, is_there):
    """Begins to copy 16 bytes into shared memory; zeros if not `is_there`."""
    T.ptx[_COPY](target, source, COPIED, T.Select(is_there, T.uint32(COPIED), T.uint32(0)))


@T.inline
def copy_two(target, source, is_there):
    """The same of 8 bytes."""
    T.ptx[_COPY_FEW](target, source, 8, T.Select(is_there, T.uint32(8), T.uint32(0)))


@T.inline
def commit():
    """The copies of this thread since the last call are a group."""
    T.ptx.cp.async_.commit_group()


@T.inline
def wait(groups):
    """Waits until no more than so many groups of this thread are under way."""
    T.ptx.cp.async_.wait_group(groups)


def words_at(memory: Buffer, word: Expr) -> Expr:
    """Where a word of shared memory lies."""
    return memory.ptr_to([word])
