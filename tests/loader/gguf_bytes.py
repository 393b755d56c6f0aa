"""Writes small GGUF files for the tests, whole or broken at a chosen place."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

TYPES = {"u8": 0, "u16": 2, "i32": 5, "u32": 4, "f32": 6, "bool": 7, "str": 8, "u64": 10, "f64": 12}
_FORMATS = {"u8": "B", "u16": "H", "i32": "i", "u32": "I", "f32": "f", "u64": "Q", "f64": "d"}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def scalar(kind: str, value: object) -> bytes:
    if kind == "str":
        assert isinstance(value, (str, bytes))
        return string(value)
    return struct.pack("<" + _FORMATS.get(kind, "B"), value)


def typed(kind: str, value: object) -> bytes:
    """A value with its type number before it."""
    return struct.pack("<I", TYPES[kind]) + scalar(kind, value)


def array(kind: str, values: list) -> bytes:
    head = struct.pack("<IIQ", 9, TYPES[kind], len(values))
    return head + b"".join(scalar(kind, value) for value in values)


def tensor(name: str | bytes, dims: list[int], kind: int, offset: int) -> bytes:
    """A row of the tensor table; `dims` in the file's order, the contiguous one first."""
    sizes = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return string(name) + sizes + struct.pack("<IQ", kind, offset)


@dataclass
class GGUFBytes:
    """The pieces of a file; counts follow the pieces unless they are set."""

    keys: list[tuple[str | bytes, bytes]] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    key_count: int | None = None
    tensor_count: int | None = None
    alignment: int = 32

    def build(self) -> bytes:
        keys = len(self.keys) if self.key_count is None else self.key_count
        tensors = len(self.tensors) if self.tensor_count is None else self.tensor_count
        out = self.magic + struct.pack("<IQQ", self.version, tensors, keys)
        out += b"".join(string(key) + value for key, value in self.keys)
        out += b"".join(self.tensors)
        return out + b"\0" * (-len(out) % self.alignment) + self.data


def small() -> GGUFBytes:
    """A whole little file: a few keys of every sort and two tensors."""
    return GGUFBytes(
        keys=[
            ("general.architecture", typed("str", "llama")),
            ("llama.block_count", typed("u32", 2)),
            ("llama.rope.freq_base", typed("f32", 10000.0)),
            ("tokenizer.ggml.add_bos_token", typed("bool", 1)),
            ("tokenizer.ggml.tokens", array("str", ["a", "b", "Ġc"])),
            ("tokenizer.ggml.token_type", array("i32", [1, 1, 3])),
        ],
        tensors=[
            tensor("a.weight", [4, 2], 0, 0),  # 2 rows of 4 F32: 32 bytes
            tensor("b.weight", [32, 3], 2, 32),  # 3 rows of 32 Q4_0: 54 bytes
        ],
        data=bytes(range(86)),
    )
