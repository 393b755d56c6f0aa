"""The block formats of ggml: how bytes become values.

A row of K values is stored as K / block blocks. A block holds small whole numbers q, and a scale
(in some formats also a minimum) for each group of them. In float32,

    value = scale * (q - offset)         symmetric formats
    value = scale * q + minimum          the other formats

These formulas, computed in this order, give the same bits as ggml. The layouts are those of the
`block_*` structures in ggml-common.h.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from mlc_llm.errors import InvalidField
from mlc_llm.quantization.block_format import (
    BlockFormat,
    Blocks,
    Bytes,
    Floats,
    Grouped,
    Parts,
)
from mlc_llm.quantization.float8_blocks import FLOAT8_FORMATS
from mlc_llm.quantization.group_blocks import GROUP_FORMATS
from mlc_llm.quantization.i_blocks import CODEBOOKS
from mlc_llm.quantization.k_blocks import PLAIN_AND_K
from mlc_llm.quantization.zero_point_blocks import ZERO_POINT_FORMATS

_CHUNK_VALUES = 1 << 18  # values computed at once: 1 MiB of float32 stays in the processor's cache

FORMATS = {
    **PLAIN_AND_K,
    **CODEBOOKS,
    **GROUP_FORMATS,
    **ZERO_POINT_FORMATS,
    **FLOAT8_FORMATS,
}
"""Those of GGUF files, and those that other files become."""
FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes of a value in the kinds that have no blocks."""

BLOCK_KINDS = tuple(FORMATS)
"""Kinds for `unpack`. `dequantize` also supports F32, F16 and BF16."""


def dequantize(kind: str, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """The float32 values of a tensor. data: its uint8 bytes. shape: with K last.

    For F32 the result is a view of `data`. Raises InvalidField for an unknown kind, or if the data
    does not fit the shape.
    """
    if kind in FLOAT_BYTES:
        _check_size(data, math.prod(shape) * FLOAT_BYTES[kind], shape)
        return _plain_floats(kind, data).reshape(shape)
    out = np.empty(math.prod(shape), np.float32)
    form = _format(kind)
    # A damaged file may hold infinite scales. They give inf and nan, as in ggml.
    with np.errstate(invalid="ignore", over="ignore"):
        for start, blocks in _chunks(form, data, shape):
            values = out[start : start + len(blocks) * form.block]
            _values(form, form.split(blocks), values.reshape(-1, form.group))
    return out.reshape(shape)


def unpack(kind: str, data: Bytes, shape: tuple[int, int]) -> Grouped:
    """Split a weight of one of BLOCK_KINDS without loss. Arguments as for `dequantize`."""
    form = _format(kind)
    size = math.prod(shape)
    q = np.empty(size, np.uint8)
    scale = np.empty(size // form.group, np.float32)
    minimum = np.empty_like(scale) if form.has_minimum else None
    units: list[list[Floats]] = [[], []]
    with np.errstate(invalid="ignore", over="ignore"):
        for start, blocks in _chunks(form, data, shape):
            parts = form.split(blocks)
            here = slice(start, start + parts.q.size)
            groups = slice(start // form.group, here.stop // form.group)
            q[here], scale[groups] = parts.q.ravel(), parts.scale.ravel()
            if minimum is not None and parts.minimum is not None:
                minimum[groups] = parts.minimum.ravel()
            for found, unit in zip(units, (parts.unit, parts.minimum_unit), strict=True):
                found.extend([] if unit is None else [unit])
    by_group = (shape[0], shape[1] // form.group)
    return Grouped(
        q.reshape(shape),
        form.bits,
        form.group,
        scale.reshape(by_group),
        None if minimum is None else minimum.reshape(by_group),
        form.offset,
        _all_half(scale) and (minimum is None or _all_half(minimum)),
        *(np.concatenate(each).reshape(shape[0], -1) if each else None for each in units),
    )


def _format(kind: str) -> BlockFormat:
    if kind not in FORMATS:
        raise InvalidField("kind", kind, "one of " + ", ".join(BLOCK_KINDS))
    return FORMATS[kind]


def _check_size(data: Bytes, expected: int, shape: tuple[int, ...]) -> None:
    if data.dtype != np.uint8 or data.size != expected:
        raise InvalidField("data", f"{data.dtype} [{data.size}]", f"{expected} bytes for {shape}")


def _chunks(form: BlockFormat, data: Bytes, shape: tuple[int, ...]) -> Iterator[tuple[int, Blocks]]:
    """All blocks in order, in pieces; with each piece the index of its first value."""
    if shape[-1] % form.block:
        raise InvalidField("shape", shape, f"rows of whole blocks of {form.block} values")
    _check_size(data, math.prod(shape) // form.block * form.layout.itemsize, shape)
    blocks = np.ascontiguousarray(data).reshape(-1).view(form.layout)
    step = _CHUNK_VALUES // form.block
    for start in range(0, len(blocks), step):
        yield start * form.block, blocks[start : start + step]


def _values(form: BlockFormat, parts: Parts, out: Floats) -> None:
    """Compute the formula at the top of this file into `out` [groups, group]."""
    if form.levels is not None:
        np.take(form.levels, parts.q.reshape(out.shape), out=out)
    else:
        np.copyto(out, parts.q.reshape(out.shape))
    if form.offset and form.levels is None:
        out -= np.float32(form.offset)  # exact: both are small whole numbers
    out *= parts.scale.reshape(-1, 1)
    if parts.minimum is not None:
        out += parts.minimum.reshape(-1, 1)


def _plain_floats(kind: str, data: Bytes) -> Floats:
    flat = np.ascontiguousarray(data).reshape(-1)
    if kind == "F32":
        return flat.view("<f4")
    if kind == "F16":
        return flat.view("<f2").astype(np.float32)
    return (flat.view("<u2").astype(np.uint32) << 16).view(np.float32)


def _all_half(values: Floats) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):
        halves = values.astype(np.float16)
    return bool((halves.astype(np.float32) == values).all())
