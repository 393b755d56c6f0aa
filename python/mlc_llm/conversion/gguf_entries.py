"""Values as the metadata of a GGUF file has them.

Format: the GGUF specification (ggml, docs/gguf.md), "File structure".
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from mlc_llm.loader.gguf_metadata import RawEntry

Value: TypeAlias = int | float | bool | str | Sequence[int] | Sequence[bool]
UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9


def entry(value: Value) -> RawEntry:
    """A value as llama.cpp's converter writes values of its type: numbers with 32 bits."""
    if isinstance(value, bool):
        return bool_entry(value)
    if isinstance(value, int):
        return uint32_entry(value)
    if isinstance(value, float):
        return float32_entry(value)
    if isinstance(value, str):
        return text_entry(value)
    if all(isinstance(one, bool) for one in value):
        return _list(_BOOL, len(value), bytes(map(int, value)))
    return int32s_entry(value)


def uint32_entry(value: int) -> RawEntry:
    """A number from 0 on."""
    return RawEntry(UINT32, struct.pack("<I", value))


def float32_entry(value: float) -> RawEntry:
    """A number that is rounded to float32."""
    return RawEntry(_FLOAT32, struct.pack("<f", value))


def bool_entry(value: bool) -> RawEntry:
    """True or false."""
    return RawEntry(_BOOL, struct.pack("<?", value))


def text_entry(text: str) -> RawEntry:
    """A text."""
    return RawEntry(_STRING, string_bytes(text))


def texts_entry(texts: Sequence[str]) -> RawEntry:
    """A list of texts."""
    return _list(_STRING, len(texts), b"".join(map(string_bytes, texts)))


def int32s_entry(values: Sequence[int]) -> RawEntry:
    """A list of whole numbers."""
    return _list(_INT32, len(values), np.array(values, "<i4").tobytes())


def float32s_entry(values: Sequence[float]) -> RawEntry:
    """A list of numbers, rounded to float32."""
    return _list(_FLOAT32, len(values), np.array(values, "<f4").tobytes())


def string_bytes(text: str) -> bytes:
    """A text as a file has it: its length in bytes, then its bytes."""
    raw = text.encode("utf-8")
    return struct.pack("<Q", len(raw)) + raw


def _list(kind: int, count: int, items: bytes) -> RawEntry:
    return RawEntry(_ARRAY, struct.pack("<IQ", kind, count) + items)
