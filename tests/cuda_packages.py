"""For tests that compile machine code for GPUs."""

from __future__ import annotations

import struct

import pytest

from mlc_llm.backends.cuda.packages import missing

needs_packages = pytest.mark.skipif(
    bool(missing()), reason="needs the packages of the extra `cuda`; scripts/test --cuda has them"
)


def section(cubin: bytes, name: str) -> bytes:
    """The bytes of a section of an ELF file of 64 bits, such as ".text.NAME"."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    texts = heads[names][4]
    for start, _, _, _, offset, length in heads:
        end = cubin.index(b"\0", texts + start)
        if cubin[texts + start : end].decode() == name:
            return cubin[offset : offset + length]
    raise KeyError(name)
