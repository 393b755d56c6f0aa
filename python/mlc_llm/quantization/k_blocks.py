"""The formats of ggml whose values have equal distances: Q4_0 to Q8_0, and Q2_K to Q6_K."""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import (
    BlockFormat,
    Blocks,
    Bytes,
    Floats,
    Parts,
    layout,
    lowered,
    nibbles,
    widened,
)


def _q4(blocks: Blocks) -> Bytes:
    q = np.empty((len(blocks), 32), np.uint8)
    nibbles(blocks["qs"], q.reshape(-1, 2, 16))
    return q


def _q5(blocks: Blocks) -> Bytes:
    fifth = np.unpackbits(blocks["qh"], axis=-1, bitorder="little")
    q: Bytes = _q4(blocks) | (fifth << np.uint8(4))
    return q


def _split_q4_0(blocks: Blocks) -> Parts:
    return Parts(_q4(blocks), widened(blocks["d"]))


def _split_q4_1(blocks: Blocks) -> Parts:
    return Parts(_q4(blocks), widened(blocks["d"]), widened(blocks["m"]))


def _split_q5_0(blocks: Blocks) -> Parts:
    return Parts(_q5(blocks), widened(blocks["d"]))


def _split_q5_1(blocks: Blocks) -> Parts:
    return Parts(_q5(blocks), widened(blocks["d"]), widened(blocks["m"]))


def _split_q8_0(blocks: Blocks) -> Parts:
    # Flipping the sign bit of an int8 adds 128.
    return Parts(blocks["qs"] ^ np.uint8(0x80), widened(blocks["d"]))


def _with_k_scales(q: Bytes, blocks: Blocks) -> Parts:
    """With scales and minima [B, 8] of Q4_K and Q5_K, from their 6-bit factors.

    The low 6 bits of bytes 0-3 are the factors 0-3 of the scales, those of bytes 4-7 the factors
    0-3 of the minima. For the factors 4-7, the top 2 bits are the top bits of the same bytes, and
    the low 4 bits are the halves of bytes 8-11: low halves for scales, high halves for minima.
    """
    low_scale, low_min, both = np.moveaxis(blocks["scales"].reshape(-1, 3, 4), 1, 0)
    factors = np.empty((2, len(blocks), 8), np.uint8)
    factors[0, :, :4] = low_scale & 63
    factors[0, :, 4:] = (both & 15) | ((low_scale >> 2) & 48)
    factors[1, :, :4] = low_min & 63
    factors[1, :, 4:] = (both >> 4) | ((low_min >> 2) & 48)
    scale, minimum = factors.astype(np.float32)
    # For all float32 x and m, x - m and x + (-m) are equal.
    unit, minimum_unit = widened(blocks["d"]), lowered(blocks["dmin"])
    return Parts(q, scale * unit, minimum * minimum_unit, unit, minimum_unit)


def _split_q4_k(blocks: Blocks) -> Parts:
    q = np.empty((len(blocks), 256), np.uint8)
    nibbles(blocks["qs"].reshape(-1, 4, 32), q.reshape(-1, 4, 2, 32))
    return _with_k_scales(q, blocks)


def _split_q5_k(blocks: Blocks) -> Parts:
    parts = _split_q4_k(blocks)
    groups = parts.q.reshape(-1, 8, 32)
    for index in range(8):
        groups[:, index] |= ((blocks["qh"] >> index) & 1) << 4
    return parts


def _pairs_of_bits(packed: Bytes) -> Bytes:
    """Unpack bytes [..., n] into [..., 4, n]: the lowest two bits of all bytes first."""
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    pairs: Bytes = (packed[..., None, :] >> shifts) & np.uint8(3)
    return pairs


def _split_q2_k(blocks: Blocks) -> Parts:
    q = _pairs_of_bits(blocks["qs"].reshape(-1, 2, 32)).reshape(-1, 256)
    unit, minimum_unit = widened(blocks["d"]), lowered(blocks["dmin"])
    scale = (blocks["scales"] & 15).astype(np.float32) * unit
    minimum = (blocks["scales"] >> 4).astype(np.float32) * minimum_unit
    return Parts(q, scale, minimum, unit, minimum_unit)


def _split_q3_k(blocks: Blocks) -> Parts:
    q = _pairs_of_bits(blocks["qs"].reshape(-1, 2, 32)).reshape(-1, 8, 32)
    third = (blocks["hmask"][:, None] >> np.arange(8, dtype=np.uint8)[:, None]) & np.uint8(1)
    q |= third << np.uint8(2)
    unit = widened(blocks["d"])
    return Parts(q.reshape(-1, 256), unit * _q3_factors(blocks["scales"]), unit=unit)


def _q3_factors(packed: Bytes) -> Floats:
    """Factors float32 [B, 16] from 12 bytes. 8 bytes hold the low 4 bits of the factors, the other
    4 bytes hold the top 2 bits."""
    low = np.empty((len(packed), 2, 8), np.uint8)
    nibbles(packed[:, :8], low)
    high = _pairs_of_bits(packed[:, 8:]).reshape(-1, 16)
    whole = (low.reshape(-1, 16) | (high << np.uint8(4))).astype(np.float32)
    factors: Floats = whole - np.float32(32)
    return factors


def _split_q6_k(blocks: Blocks) -> Parts:
    q = np.empty((len(blocks), 256), np.uint8)
    nibbles(blocks["ql"].reshape(-1, 2, 64), q.reshape(-1, 2, 2, 64))
    groups, high = q.reshape(-1, 2, 4, 32), blocks["qh"].reshape(-1, 2, 32)
    for index in range(4):
        groups[:, :, index] |= ((high >> (2 * index)) & 3) << 4
    unit = widened(blocks["d"])
    return Parts(q, unit * blocks["scales"].astype(np.float32), unit=unit)


_D, _M, _DMIN = ("d", "<f2"), ("m", "<f2"), ("dmin", "<f2")
PLAIN_AND_K: dict[str, BlockFormat] = {
    "Q4_0": BlockFormat(32, layout(_D, ("qs", "u1", 16)), _split_q4_0, 4, offset=8),
    "Q4_1": BlockFormat(32, layout(_D, _M, ("qs", "u1", 16)), _split_q4_1, 4),
    "Q5_0": BlockFormat(
        32, layout(_D, ("qh", "u1", 4), ("qs", "u1", 16)), _split_q5_0, 5, offset=16
    ),
    "Q5_1": BlockFormat(32, layout(_D, _M, ("qh", "u1", 4), ("qs", "u1", 16)), _split_q5_1, 5),
    "Q8_0": BlockFormat(32, layout(_D, ("qs", "u1", 32)), _split_q8_0, 8, offset=128),
    "Q2_K": BlockFormat(
        256, layout(("scales", "u1", 16), ("qs", "u1", 64), _D, _DMIN), _split_q2_k, 4, group=16
    ),
    "Q3_K": BlockFormat(
        256,
        layout(("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), _D),
        _split_q3_k,
        4,
        group=16,
        offset=4,
    ),
    "Q4_K": BlockFormat(
        256, layout(_D, _DMIN, ("scales", "u1", 12), ("qs", "u1", 128)), _split_q4_k, 4
    ),
    "Q5_K": BlockFormat(
        256,
        layout(_D, _DMIN, ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)),
        _split_q5_k,
        5,
    ),
    "Q6_K": BlockFormat(
        256,
        layout(("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), _D),
        _split_q6_k,
        6,
        group=16,
        offset=32,
    ),
}
