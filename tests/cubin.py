"""Reads machine code for GPUs: files of ELF, 64 bits.

What the sections of NVIDIA mean, and the numbers of instructions, was found with its own
disassembler: it is not documented.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

OPCODES = {
    0x23C: "HMMA",
    0xDF0: "HGMMA",
    0x381: "LDG",
    0x981: "LDG",
    0x386: "STG",
    0x986: "STG",
    0x984: "LDS",
    0x388: "STS",
    0x983: "LDL",
    0x387: "STL",
    0x83B: "LDSM",
    0xFAE: "LDGSTS",
    0xF89: "SHFL",
    0x589: "SHFL",
    0xB1D: "BAR",
    0x82E: "ACQBULK",
    0x82D: "PREEXIT",
}
"""The last twelve bits of an instruction of 128 bits, since Volta."""
_FRAME_SIZE = 0x11
"""EIATTR_FRAME_SIZE: of a function, the bytes of its own memory."""
_WITH_SIZE = 0x04
"""The format of an entry whose bytes follow it."""


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


def opcodes(cubin: bytes, kernel: str) -> set[str]:
    """Which of the known instructions a kernel has."""
    code = section(cubin, f".text.{kernel}")
    found = {word & 0xFFF for word, _ in struct.iter_unpack("<QQ", code)}
    return {name for number, name in OPCODES.items() if number in found}


def frame_bytes(cubin: bytes, kernel: str) -> int:
    """The memory of its own that each thread of a kernel has: for registers that were spilled, and
    for arrays with indices that are not known."""
    symbols = section(cubin, ".symtab")
    names = section(cubin, ".strtab")
    sizes = [
        size
        for kind, payload in _entries(section(cubin, ".nv.info"))
        if kind == _FRAME_SIZE
        for symbol, size in [struct.unpack("<II", payload)]
        if _name(names, struct.unpack_from("<I", symbols, 24 * symbol)[0]) == kernel
    ]
    assert len(sizes) == 1, f"{len(sizes)} frames of {kernel}"
    return int(sizes[0])


def _name(texts: bytes, start: int) -> str:
    return texts[start : texts.index(b"\0", start)].decode()


def _entries(info: bytes) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each entry of a section of facts."""
    at = 0
    while at < len(info):
        form, kind, size = struct.unpack_from("<BBH", info, at)
        length = size if form == _WITH_SIZE else 0
        yield kind, info[at + 4 : at + 4 + length]
        at += 4 + length
