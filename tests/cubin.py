"""Reads machine code for GPUs: files of ELF, 64 bits."""

from __future__ import annotations

import struct


def section(cubin: bytes, name: str) -> bytes:
    """The bytes of a section, such as ".text.NAME"."""
    (table,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + i * size) for i in range(count)]
    texts = heads[names][4]
    for start, _, _, _, offset, length in heads:
        end = cubin.index(b"\0", texts + start)
        if cubin[texts + start : end].decode() == name:
            return cubin[offset : offset + length]
    raise KeyError(name)
