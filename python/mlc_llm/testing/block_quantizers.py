"""Rounds float matrices to GGUF tensor types in a simple way, for test models. The quality is low.

Block layouts: `block_q4_0`, `block_q4_1` and `block_q8_0` of ggml (32 values each).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
BLOCK = 32


def quantize_blocks(values: Floats, kind: str) -> bytes:
    """The bytes of `values` in the tensor type `kind`, one of QUANTIZERS.

    For block types the last axis must be a multiple of 32. Raises KeyError for another kind.
    """
    return QUANTIZERS[kind](np.ascontiguousarray(values, np.float32))


def _float32(values: Floats) -> bytes:
    return values.astype("<f4").tobytes()


def _float16(values: Floats) -> bytes:
    return values.astype("<f2").tobytes()


def _bfloat16(values: Floats) -> bytes:
    """The low bits are cut, not rounded."""
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


def _divided(blocks: Floats, scale: Halves) -> Floats:
    """blocks / scale, rounded; 0 if the scale is 0."""
    wide = scale.astype(np.float32)
    quotient: Floats = np.rint(np.divide(blocks, wide, out=np.zeros_like(blocks), where=wide != 0))
    return quotient


def _nibbles(q: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The first half of each block in the low 4 bits, the second half in the high 4 bits."""
    packed: npt.NDArray[np.uint8] = q[:, : BLOCK // 2] | (q[:, BLOCK // 2 :] << np.uint8(4))
    return packed


def _joined(*columns: npt.NDArray[np.generic]) -> bytes:
    return np.concatenate([column.view(np.uint8) for column in columns], axis=1).tobytes()


QUANTIZERS = {
    "F32": _float32,
    "F16": _float16,
    "BF16": _bfloat16,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
}
"""Tensor type -> function from a contiguous float32 array to bytes."""
