"""Blocks of 8-bit floats (E4M3) with a scale in float32, which folders of Hugging Face become."""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import BlockFormat, Blocks, Bytes, Floats, Parts, layout
from mlc_llm.quantization.float8 import E4M3

GROUP = 32
KIND = "float8_e4m3"
_LAYOUT = layout(("q", "u1", GROUP), ("d", "<f4"))


def _split(blocks: Blocks) -> Parts:
    return Parts(np.ascontiguousarray(blocks["q"]), blocks["d"][:, None])


FLOAT8_FORMATS = {KIND: BlockFormat(GROUP, _LAYOUT, _split, 8, offset=128, levels=E4M3)}
"""It is no type of GGUF files."""


def as_blocks(values: Bytes, scale: Floats) -> Bytes:
    """The bytes of blocks. values: [rows, columns]; scale: [rows, columns / 32]."""
    blocks = np.empty(scale.shape, _LAYOUT)
    blocks["q"] = values.reshape(*scale.shape, GROUP)
    blocks["d"] = scale
    return blocks.reshape(-1).view(np.uint8)
