"""MLC LLM's 4-bit groups as block formats: a group's 16 bytes of values, then its scale.

A file has values and scales apart; `group_schemes.py` says how. Side by side they are blocks like
those of GGUF, so all that reads weights can read them.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization.block_format import (
    BlockFormat,
    Blocks,
    Bytes,
    Floats,
    Parts,
    layout,
)
from mlc_llm.quantization.group_schemes import Scheme, Words, read_numbers

GROUP, OFFSET = 32, 7
_SCALES = {"q4f16": "<f2", "q4bf16": "<u2", "q4f32": "<f4"}


def _split(blocks: Blocks) -> Parts:
    packed = blocks["q"]
    q = np.empty((len(blocks), GROUP), np.uint8)
    np.bitwise_and(packed, 15, out=q[:, ::2])
    np.right_shift(packed, 4, out=q[:, 1::2])
    scale: Floats = read_numbers(blocks["d"])[:, None]
    return Parts(q, scale)


GROUP_FORMATS = {
    kind: BlockFormat(GROUP, layout(("q", "u1", 16), ("d", scale)), _split, 4, offset=OFFSET)
    for kind, scale in _SCALES.items()
}
"""By the type of the scales. They are no types of GGUF files."""


GROUP_KINDS = {"float16": "q4f16", "bfloat16": "q4bf16", "float32": "q4f32"}
"""The block format for each type of scales."""


def group_kind(scheme: Scheme) -> str | None:
    """The block format of a scheme's groups; None: it has no 4-bit groups."""
    return GROUP_KINDS[scheme.dtype] if scheme.bits == 4 else None


def as_blocks(words: Words, scale: npt.NDArray[np.generic]) -> Bytes:
    """The bytes of blocks, from words uint32 [rows, 4 groups] and scales [rows, groups]."""
    rows, groups = scale.shape
    values = np.ascontiguousarray(words).view(np.uint8).reshape(rows, groups, 16)
    ends = np.ascontiguousarray(scale).view(np.uint8).reshape(rows, groups, -1)
    return np.concatenate([values, ends], axis=2).reshape(-1)
