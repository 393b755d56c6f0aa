"""Asks the memory for data that is needed soon."""

from __future__ import annotations

from tvm.script import tirx as T

from mlc_llm.kernels.types import Buffer, Expr, Index

LINE_BYTES = 64


def prefetch(buffer: Buffer, *index: Index, to_write: bool = False, cache: int = 1) -> Expr:
    """Expression to evaluate: loads the cache line of an element; nothing happens past the end.

    cache: 1 or 2, the level that it is loaded into. A core waits for few lines of level 1 at once
    (24 on AMD Zen 4), and what else it reads has to wait with them; of level 2 it asks for more.
    """
    purpose, keep, data = T.int32(int(to_write)), T.int32(4 - cache), T.int32(1)
    return T.call_llvm_intrin(
        "void", "llvm.prefetch", T.address_of(buffer[index]), purpose, keep, data
    )


@T.inline
def align_stack():
    """Makes LLVM align the stack of the function to 64 bytes: a vector that registers have no room
    for would lie in two cache lines otherwise, in most processes. Its allocator of registers finds
    too late that it needs aligned places; a buffer with an address makes it know from the start."""
    # Of a type that no other buffer has: TVM merges buffers of one type, and loses the alignment.
    line = T.alloc_buffer((1,), f"float64x{LINE_BYTES // 8}")
    T.evaluate(prefetch(line, 0))
