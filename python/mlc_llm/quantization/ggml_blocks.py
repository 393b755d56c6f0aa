"""The block formats of ggml: what the bytes mean.

A row of K values is stored as K / block blocks; a block holds small whole numbers q and one
or more scales (and minima) for groups of them. Every format here is, in float32,

    value = scale * (q - offset)         symmetric formats
    value = scale * q + minimum          the others

and evaluated in this order it gives ggml's own values to the last bit. Layouts: the
`block_*` structures of ggml's common header.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import InvalidField

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_CHUNK_VALUES = 1 << 18  # values worked on at once: their float32 stay in the processor's cache


@dataclass(frozen=True)
class Grouped:
    """A weight [N, K] taken apart into whole numbers and the scales of their groups.

    q: uint8 [N, K]; each fits in `bits` bits.
    scale, minimum: float32 [N, K // group]; minimum is None for symmetric formats.
    offset: what to take from q first; 0 where there is a minimum.
    half: every scale and minimum is exactly a float16.
    """

    q: Bytes
    bits: Literal[4, 8]
    group: Literal[16, 32]
    scale: Floats
    minimum: Floats | None
    offset: int
    half: bool


class _Parts(NamedTuple):
    """Some blocks taken apart: q [B, block], scale and minimum [B, groups in a block]."""

    q: Bytes
    scale: Floats
    minimum: Floats | None = None


@dataclass(frozen=True)
class _Format:
    block: int
    layout: np.dtype[Any]
    split: Callable[[Any], _Parts]
    bits: Literal[4, 8]
    group: Literal[16, 32] = 32
    offset: int = 0


def _layout(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[Any]:
    return np.dtype(list(fields))


def _nibbles(packed: Bytes, out: Bytes) -> None:
    """packed [..., n] to out [..., 2, n]: the low halves of the bytes, then the high ones."""
    np.bitwise_and(packed, 15, out=out[..., 0, :])
    np.right_shift(packed, 4, out=out[..., 1, :])


def _q4(blocks: Any) -> Bytes:
    q = np.empty((len(blocks), 32), np.uint8)
    _nibbles(blocks["qs"], q.reshape(-1, 2, 16))
    return q


def _q5(blocks: Any) -> Bytes:
    fifth = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    q: Bytes = _q4(blocks) | (fifth << np.uint8(4))
    return q


def _float32(column: Any) -> Floats:
    """float16 [B] to float32 [B, 1]."""
    wide: Floats = column.astype(np.float32)[:, None]
    return wide


def _split_q4_0(blocks: Any) -> _Parts:
    return _Parts(_q4(blocks), _float32(blocks["d"]))


def _split_q4_1(blocks: Any) -> _Parts:
    return _Parts(_q4(blocks), _float32(blocks["d"]), _float32(blocks["m"]))


def _split_q5_0(blocks: Any) -> _Parts:
    return _Parts(_q5(blocks), _float32(blocks["d"]))


def _split_q5_1(blocks: Any) -> _Parts:
    return _Parts(_q5(blocks), _float32(blocks["d"]), _float32(blocks["m"]))


def _split_q8_0(blocks: Any) -> _Parts:
    # flipping the sign bit of an int8 adds 128
    return _Parts(blocks["qs"] ^ np.uint8(0x80), _float32(blocks["d"]))


def _k_scales(blocks: Any) -> tuple[Floats, Floats]:
    """Scales and minima [B, 8] of Q4_K and Q5_K, from their 6-bit factors.

    Bytes 0-3 and 4-7 hold the factors 0-3 of scale and minimum; their two top bits, and a
    nibble each of bytes 8-11, hold the factors 4-7.
    """
    low_scale, low_min, both = np.moveaxis(blocks["scales"].reshape(-1, 3, 4), 1, 0)
    factors = np.empty((2, len(blocks), 8), np.uint8)
    factors[0, :, :4] = low_scale & 63
    factors[0, :, 4:] = (both & 15) | ((low_scale >> 2) & 48)
    factors[1, :, :4] = low_min & 63
    factors[1, :, 4:] = (both >> 4) | ((low_min >> 2) & 48)
    scale, minimum = factors.astype(np.float32)
    scale *= _float32(blocks["d"])
    minimum *= _float32(blocks["dmin"])
    # x - m and x + (-m) are the same float32 for every x and m
    return scale, np.negative(minimum, out=minimum)


def _split_q4_k(blocks: Any) -> _Parts:
    q = np.empty((len(blocks), 256), np.uint8)
    _nibbles(blocks["qs"].reshape(-1, 4, 32), q.reshape(-1, 4, 2, 32))
    return _Parts(q, *_k_scales(blocks))


def _split_q5_k(blocks: Any) -> _Parts:
    parts = _split_q4_k(blocks)
    groups = parts.q.reshape(-1, 8, 32)
    for index in range(8):
        groups[:, index] |= ((blocks["qh"] >> index) & 1) << 4
    return parts


def _split_q6_k(blocks: Any) -> _Parts:
    q = np.empty((len(blocks), 256), np.uint8)
    _nibbles(blocks["ql"].reshape(-1, 2, 64), q.reshape(-1, 2, 2, 64))
    groups, high = q.reshape(-1, 2, 4, 32), blocks["qh"].reshape(-1, 2, 32)
    for index in range(4):
        groups[:, :, index] |= ((high >> (2 * index)) & 3) << 4
    return _Parts(q, _float32(blocks["d"]) * blocks["scales"].astype(np.float32))


_D, _M, _DMIN = ("d", "<f2"), ("m", "<f2"), ("dmin", "<f2")
_FORMATS = {
    "Q4_0": _Format(32, _layout(_D, ("qs", "u1", 16)), _split_q4_0, 4, offset=8),
    "Q4_1": _Format(32, _layout(_D, _M, ("qs", "u1", 16)), _split_q4_1, 4),
    "Q5_0": _Format(32, _layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), _split_q5_0, 8, offset=16),
    "Q5_1": _Format(32, _layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), _split_q5_1, 8),
    "Q8_0": _Format(32, _layout(_D, ("qs", "u1", 32)), _split_q8_0, 8, offset=128),
    "Q4_K": _Format(
        256, _layout(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128)), _split_q4_k, 4
    ),
    "Q5_K": _Format(
        256,
        _layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
        _split_q5_k,
        8,
    ),
    "Q6_K": _Format(
        256,
        _layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        _split_q6_k,
        8,
        group=16,
        offset=32,
    ),
}
_FLOAT_BYTES = {"F32": 4, "F16": 2, "BF16": 2}

BLOCK_KINDS = tuple(_FORMATS)
"""Kinds that `unpack` takes apart; `dequantize` also knows F32, F16 and BF16."""


def dequantize(kind: str, data: Bytes, shape: tuple[int, ...]) -> Floats:
    """The float32 values of a tensor; `data` its uint8 bytes, `shape` with K last.

    For F32 the result is a view of `data`. Raises InvalidField for an unknown kind or for
    data that does not fit the shape.
    """
    if kind in _FLOAT_BYTES:
        _check_size(data, math.prod(shape) * _FLOAT_BYTES[kind], shape)
        return _plain_floats(kind, data).reshape(shape)
    out = np.empty(math.prod(shape), np.float32)
    form = _format(kind)
    # a damaged file may hold infinite scales: they give inf and nan, as ggml has it
    with np.errstate(invalid="ignore", over="ignore"):
        for start, blocks in _chunks(form, data, shape):
            values = out[start : start + len(blocks) * form.block]
            _values(form, form.split(blocks), values.reshape(-1, form.group))
    return out.reshape(shape)


def unpack(kind: str, data: Bytes, shape: tuple[int, int]) -> Grouped:
    """Take a weight of one of BLOCK_KINDS apart without loss; arguments as of `dequantize`."""
    form = _format(kind)
    size = math.prod(shape)
    q = np.empty(size, np.uint8)
    scale = np.empty(size // form.group, np.float32)
    minimum = np.empty_like(scale) if _has_minimum(form) else None
    with np.errstate(invalid="ignore", over="ignore"):
        for start, blocks in _chunks(form, data, shape):
            parts = form.split(blocks)
            here = slice(start, start + parts.q.size)
            groups = slice(start // form.group, here.stop // form.group)
            q[here], scale[groups] = parts.q.ravel(), parts.scale.ravel()
            if minimum is not None and parts.minimum is not None:
                minimum[groups] = parts.minimum.ravel()
    by_group = (shape[0], shape[1] // form.group)
    return Grouped(
        q.reshape(shape),
        form.bits,
        form.group,
        scale.reshape(by_group),
        None if minimum is None else minimum.reshape(by_group),
        form.offset,
        _all_half(scale) and (minimum is None or _all_half(minimum)),
    )


def _format(kind: str) -> _Format:
    if kind not in _FORMATS:
        raise InvalidField("kind", kind, "one of " + ", ".join(BLOCK_KINDS))
    return _FORMATS[kind]


def _has_minimum(form: _Format) -> bool:
    return form.offset == 0


def _check_size(data: Bytes, expected: int, shape: tuple[int, ...]) -> None:
    if data.dtype != np.uint8 or data.size != expected:
        raise InvalidField("data", f"{data.dtype} [{data.size}]", f"{expected} bytes for {shape}")


def _chunks(form: _Format, data: Bytes, shape: tuple[int, ...]) -> Iterator[tuple[int, Any]]:
    """Pieces of the blocks in order, each with the number of its first value."""
    if shape[-1] % form.block:
        raise InvalidField("shape", shape, f"rows of whole blocks of {form.block} values")
    _check_size(data, math.prod(shape) // form.block * form.layout.itemsize, shape)
    blocks = np.ascontiguousarray(data).reshape(-1).view(form.layout)
    step = _CHUNK_VALUES // form.block
    for start in range(0, len(blocks), step):
        yield start * form.block, blocks[start : start + step]


def _values(form: _Format, parts: _Parts, out: Floats) -> None:
    """The formula at the top of this file, into `out` [groups, group]."""
    np.copyto(out, parts.q.reshape(out.shape))
    if form.offset:
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
