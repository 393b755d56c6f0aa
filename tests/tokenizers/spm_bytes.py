"""Writes SentencePiece's model files, whole and broken ones."""

from __future__ import annotations

import struct
from collections.abc import Sequence

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
UNIGRAM, BPE = 1, 2
Piece = tuple[str, float, int]


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    parts = bytearray()
    while value > 127:
        parts.append(value & 127 | 128)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def real(field: int, value: float) -> bytes:
    return varint(field << 3 | 5) + struct.pack("<f", value)


def block(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def piece(text: str, score: float = 0.0, kind: int = NORMAL) -> bytes:
    stated = number(3, kind) if kind != NORMAL else b""
    return block(1, block(1, text.encode()) + real(2, score) + stated)


def model(
    pieces: Sequence[Piece],
    algorithm: int = BPE,
    *,
    trainer: bytes = b"",
    normalizer: bytes = b"",
    more: bytes = b"",
) -> bytes:
    """A model file. `trainer` and `normalizer` are fields of trainer_spec and normalizer_spec."""
    whole = b"".join(piece(*one) for one in pieces)
    return whole + block(2, number(3, algorithm) + trainer) + block(3, normalizer) + more


START: list[Piece] = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL)]
"""The first pieces of most models."""
BYTES: list[Piece] = [(f"<0x{value:02X}>", 0, BYTE) for value in range(256)]


def characters(replacements: dict[str, str]) -> bytes:
    """A table of replaced characters, as a trie without shared nodes."""
    texts = b""
    trie: dict[int, dict] = {}  # type: ignore[type-arg]
    for key, value in replacements.items():
        node = trie
        for byte in key.encode():
            node = node.setdefault(byte, {})
        node[-1] = len(texts)  # type: ignore[assignment]
        texts += value.encode() + b"\0"
    units = [0] * 256
    _place(units, 0, trie)
    return struct.pack("<I", 4 * len(units)) + struct.pack(f"<{len(units)}I", *units) + texts


def _place(units: list[int], at: int, node: dict) -> None:  # type: ignore[type-arg]
    """Give the children of the node at unit `at` a block of 256 units of their own."""
    base = len(units)
    units += [0] * 256
    offset = at ^ base
    assert offset < 1 << 21
    units[at] |= offset << 10 | (256 if -1 in node else 0)
    if -1 in node:
        units[base] = 1 << 31 | node[-1]
    for byte, child in node.items():
        if byte >= 0:
            units[base ^ byte] = byte
            _place(units, base ^ byte, child)
