"""Blocks of 4-bit values with a scale and a minimum in float32.

What GPTQ, AWQ and compressed-tensors make becomes such blocks: w = scale * (q - zero), so the
minimum is -scale * zero. It is exact for scales of 16 bits.
"""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import (
    BlockFormat,
    Blocks,
    Bytes,
    Floats,
    Parts,
    layout,
)

GROUP = 32
KIND = "zero_point4"
_LAYOUT = layout(("q", "u1", 16), ("d", "<f4"), ("m", "<f4"))


def _split(blocks: Blocks) -> Parts:
    packed = blocks["q"]
    q = np.empty((len(blocks), GROUP), np.uint8)
    np.bitwise_and(packed, 15, out=q[:, ::2])
    np.right_shift(packed, 4, out=q[:, 1::2])
    return Parts(q, blocks["d"][:, None], blocks["m"][:, None])


ZERO_POINT_FORMATS = {KIND: BlockFormat(GROUP, _LAYOUT, _split, 4)}
"""It is no type of GGUF files."""


def as_blocks(pairs: Bytes, scale: Floats, zero: Floats) -> Bytes:
    """The bytes of blocks. pairs: [rows, columns / 2], two neighbours a byte, the first one in the
    low half. scale, zero: [rows, groups]; a group has so many whole blocks as fit."""
    rows, groups = scale.shape
    blocks = np.empty((rows, 2 * pairs.shape[1] // GROUP), _LAYOUT)
    blocks["q"] = pairs.reshape(rows, -1, GROUP // 2)
    repeated = blocks.shape[1] // groups
    blocks["d"] = np.repeat(scale, repeated, axis=1)
    blocks["m"] = np.repeat(-(scale * zero), repeated, axis=1)
    return blocks.reshape(-1).view(np.uint8)
