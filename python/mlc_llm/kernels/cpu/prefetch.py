"""Asks the memory for data that is needed soon."""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

LINE_BYTES = 64


def prefetch(buffer: Any, *index: Any, to_write: bool = False) -> Any:
    """Expression to evaluate: loads the cache line of an element; nothing happens past the end."""
    purpose, keep, data = T.int32(int(to_write)), T.int32(3), T.int32(1)
    return T.call_llvm_intrin(
        "void", "llvm.prefetch", T.address_of(buffer[index]), purpose, keep, data
    )
