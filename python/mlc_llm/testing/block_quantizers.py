"""Rounds float matrices to GGUF tensor types, simply: made for test models, not for quality.

Block layouts: ggml, `block_q4_0`, `block_q4_1` and `block_q8_0` (32 values each).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
BLOCK = 32


def quantize_blocks(values: Floats, kind: str) -> bytes:
    """Bytes of `values` (the last axis contiguous) in `kind`: one of QUANTIZERS.

    The last axis is a multiple of 32 for block types. Raises KeyError for another kind.
    """
    return QUANTIZERS[kind](np.ascontiguousarray(values, np.float32))


def _float32(values: Floats) -> bytes:
    return values.astype("<f4").tobytes()


def _float16(values: Floats) -> bytes:
    return values.astype("<f2").tobytes()


def _bfloat16(values: Floats) -> bytes:
    """Cut, not rounded."""
    return (values.view(np.uint32) >> 16).astype("<u2").tobytes()


def _q4_0(values: Floats) -> bytes:
    """value = scale * (q - 8)."""
    blocks = values.reshape(-1, BLOCK)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 7).astype("<f2")
    q = np.clip(_divided(blocks, scale) + 8, 0, 15).astype(np.uint8)
    return _joined(scale, _nibbles(q))


def _q4_1(values: Floats) -> bytes:
    """value = scale * q + minimum."""
    blocks = values.reshape(-1, BLOCK)
    low = blocks.min(axis=1, keepdims=True)
    scale = ((blocks.max(axis=1, keepdims=True) - low) / 15).astype("<f2")
    q = np.clip(_divided(blocks - low, scale), 0, 15).astype(np.uint8)
    return _joined(scale, low.astype("<f2"), _nibbles(q))


def _q8_0(values: Floats) -> bytes:
    """value = scale * q, q signed."""
    blocks = values.reshape(-1, BLOCK)
    scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
    return _joined(scale, np.clip(_divided(blocks, scale), -127, 127).astype(np.int8))


def _divided(blocks: Floats, scale: npt.NDArray[Any]) -> Floats:
    """Rounded quotients; zero where the scale is zero."""
    wide = scale.astype(np.float32)
    quotient: Floats = np.rint(np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide != 0))
    return quotient


def _nibbles(q: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The first half of a block in the low nibbles, the second in the high ones."""
    packed: npt.NDArray[np.uint8] = q[:, : BLOCK // 2] | (q[:, BLOCK // 2 :] << np.uint8(4))
    return packed


def _joined(*columns: npt.NDArray[Any]) -> bytes:
    return np.concatenate([column.view(np.uint8) for column in columns], axis=1).tobytes()


QUANTIZERS = {
    "F32": _float32,
    "F16": _float16,
    "BF16": _bfloat16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
"""Kind -> function from a contiguous float32 array to bytes."""
