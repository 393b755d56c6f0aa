"""The formats of ggml whose values have unequal distances, and the ternary formats.

A block stores indices: of a value in a table (IQ4, MXFP4, NVFP4), or of a vector in a code book
(IQ1 to IQ3). Each index is replaced by its value, a small integer q - offset, so the result is like
that of the other formats. Nothing is lost, but q takes more bits than an index: 8 in most formats.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc_llm.quantization import ggml_grids
from mlc_llm.quantization.block_format import (
    BlockFormat,
    Blocks,
    Bytes,
    Floats,
    Parts,
    layout,
    nibbles,
    widened,
)
from mlc_llm.quantization.ggml_grids import CodeBook

OFFSET = 128
"""The offset of formats with a code book: q - 128 is a signed byte."""

_IQ4_VALUES = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_IQ4 = (np.array(_IQ4_VALUES) + OFFSET).astype(np.uint8)
_FP4_OFFSET = 12
_FP4_VALUES = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of E2M1 (Open Compute Project, "OCP Microscaling Formats (MX)", 1.0)."""
_FP4 = (np.array(_FP4_VALUES) + _FP4_OFFSET).astype(np.uint8)

Indices = npt.NDArray[np.uint16]
Integers = npt.NDArray[np.integer]
Signs = npt.NDArray[np.bool_]


def _two_halves(packed: Bytes) -> Bytes:
    """Unpack bytes [B, G, n] into [B, G * 2n]: in each group all low halves, then all high ones."""
    out = np.empty((*packed.shape[:2], 2, packed.shape[2]), np.uint8)
    nibbles(packed, out)
    return out.reshape(len(packed), -1)


def _split_iq4_nl(blocks: Blocks) -> Parts:
    return Parts(_IQ4[_two_halves(blocks["qs"][:, None])], widened(blocks["d"]))


def _split_iq4_xs(blocks: Blocks) -> Parts:
    low = _in_turn(blocks["scales_l"], 4)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)) & np.uint16(3)
    factor = (low | (high << np.uint16(4))).astype(np.float32) - np.float32(32)
    q = _IQ4[_two_halves(blocks["qs"].reshape(-1, 8, 16))]
    return Parts(q, widened(blocks["d"]) * factor)


def _split_mxfp4(blocks: Blocks) -> Parts:
    """The scale is 2 ** (e - 128), as _FP4 has the doubled values. e below 2 gives subnormals."""
    exponent = blocks["e"].astype(np.uint32)
    low = np.uint32(0x0020_0000) << np.minimum(exponent, 1)
    bits = np.where(exponent < 2, low, (exponent - np.uint32(1)) << np.uint32(23))
    scale = bits.astype(np.uint32).view(np.float32)[:, None]
    return Parts(_FP4[_two_halves(blocks["qs"][:, None])], scale)


def _split_nvfp4(blocks: Blocks) -> Parts:
    return Parts(_FP4[_two_halves(blocks["qs"].reshape(-1, 4, 8))], _ue4m3(blocks["d"]))


def _ue4m3(codes: Bytes) -> Floats:
    """Half the value of an FP8 number (E4M3) without sign. Its NaN, 0x7F, gives 0."""
    exponent = ((codes >> 3) & 15).astype(np.int32)
    mantissa = (codes & 7).astype(np.float32)
    normal = np.ldexp(np.float32(1) + mantissa / np.float32(8), exponent - 8)
    values = np.where(exponent == 0, np.ldexp(mantissa, -10), normal)
    scale: Floats = np.where(codes == 0x7F, 0, values).astype(np.float32)
    return scale


def _split_tq1_0(blocks: Blocks) -> Parts:
    """A byte holds 5 digits of base 3 as a fraction of 256. The last 4 bytes hold 4 digits."""
    parts = (_digits(blocks["qs"][:, :32], 5), _digits(blocks["qs"][:, 32:], 5))
    return _ternary(blocks, np.concatenate([*parts, _digits(blocks["qh"], 4)], axis=1))


def _digits(packed: Bytes, count: int) -> Bytes:
    """Unpack bytes [B, n] into [B, count * n]: the first digits of all bytes first, and so on."""
    power = (3 ** np.arange(count)).astype(np.uint8)[:, None]
    fractions = (packed[:, None] * power).astype(np.uint16)
    digits: Bytes = ((fractions * np.uint16(3)) >> np.uint16(8)).astype(np.uint8)
    return digits.reshape(len(packed), -1)


def _split_tq2_0(blocks: Blocks) -> Parts:
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    q = (blocks["qs"].reshape(-1, 2, 1, 32) >> shifts) & np.uint8(3)
    return _ternary(blocks, q.reshape(-1, 256))


def _ternary(blocks: Blocks, q: Bytes) -> Parts:
    return Parts(q, np.repeat(widened(blocks["d"]), 8, axis=1))


def _split_iq2_xxs(blocks: Blocks) -> Parts:
    words = blocks["qs"].reshape(-1, 8, 2)
    index = np.ascontiguousarray(words[..., 0]).view(np.uint8).reshape(-1, 32)
    scale = _scales(blocks, words[..., 1] >> 28, 0.25)
    return Parts(_signed(ggml_grids.IQ2_XXS, index, _seven_signs(words[..., 1])), scale)


def _split_iq2_xs(blocks: Blocks) -> Parts:
    index = blocks["qs"] & np.uint16(511)
    signs = _eighth_sign((blocks["qs"] >> np.uint16(9)).astype(np.uint8))
    q = _signed(ggml_grids.IQ2_XS, index, signs)
    return Parts(q, _scales(blocks, _in_turn(blocks["scales"], 4), 0.25))


def _split_iq2_s(blocks: Blocks) -> Parts:
    index = _wider(blocks["qs"], _in_turn(blocks["qh"], 2))
    q = _signed(ggml_grids.IQ2_S, index, _bits(blocks["signs"]))
    return Parts(q, _scales(blocks, _in_turn(blocks["scales"], 4), 0.25))


def _split_iq3_xxs(blocks: Blocks) -> Parts:
    words = blocks["scales"]
    q = _signed(ggml_grids.IQ3_XXS, blocks["qs"], _seven_signs(words))
    return Parts(q, _scales(blocks, words >> 28, 0.5))


def _split_iq3_s(blocks: Blocks) -> Parts:
    index = _wider(blocks["qs"], _bits(blocks["qh"]).astype(np.uint8))
    q = _signed(ggml_grids.IQ3_S, index, _bits(blocks["signs"]))
    return Parts(q, widened(blocks["d"]) * _odd(_in_turn(blocks["scales"], 4)))


def _split_iq1_s(blocks: Blocks) -> Parts:
    """q - offset is 8 times the value. The value is -1, 0 or 1, plus or minus an eighth."""
    heads = blocks["qh"]
    high = (heads[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & np.uint16(7)
    index = _wider(blocks["qs"], high.reshape(-1, 32))
    lower = np.repeat((heads & np.uint16(0x8000)) != 0, 4, axis=1)
    scale = widened(blocks["d"]) * _odd((heads >> np.uint16(12)) & np.uint16(7))
    return Parts(_shifted(index, lower), scale * np.float32(0.125))


def _split_iq1_m(blocks: Blocks) -> Parts:
    """Like IQ1_S, but the top 4 bits of four words hold the float16 scale."""
    words, heads = blocks["scales"], _in_turn(blocks["qh"], 4)
    d = ((words & np.uint16(0xF000)) >> np.array([12, 8, 4, 0], np.uint16)).sum(1, dtype=np.uint16)
    factors = (words[..., None] >> np.arange(0, 12, 3, dtype=np.uint16)) & np.uint16(7)
    index = _wider(blocks["qs"], heads & np.uint8(7))
    scale = widened(d.view(np.float16)) * _odd(factors.reshape(-1, 16))
    return Parts(_shifted(index, (heads & np.uint8(8)) != 0), scale * np.float32(0.125))


def _in_turn(packed: Bytes, bits: int) -> Bytes:
    """Unpack bytes [B, n] into [B, n * 8 / bits]: the fields of each byte, the lowest first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields: Bytes = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return fields.reshape(len(packed), -1)


def _wider(low: Bytes, high: Integers) -> Indices:
    """Indices from their low 8 bits and the bits above them."""
    wide: Indices = low.astype(np.uint16) | (high.astype(np.uint16) << np.uint16(8))
    return wide


def _bits(packed: Bytes) -> Signs:
    """Unpack bytes [B, n] into [B, 8n], the lowest bit of each byte first."""
    return np.unpackbits(packed, axis=-1, bitorder="little").astype(np.bool_)


def _eighth_sign(seven: Bytes) -> Signs:
    """Signs [B, 8n] from bytes [B, n] with 7 signs each. The eighth makes the number of minus signs
    even."""
    parity = seven ^ (seven >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return _bits(seven | (parity << np.uint8(7)))


def _seven_signs(words: npt.NDArray[np.uint32]) -> Signs:
    """Signs [B, 32n] from words [B, n] with 4 times 7 signs in their lowest bits."""
    fields = (words[..., None] >> np.arange(0, 28, 7, dtype=np.uint32)) & np.uint32(127)
    return _eighth_sign(fields.astype(np.uint8).reshape(len(words), -1))


def _signed(book: CodeBook, index: Integers, negative: Signs) -> Bytes:
    """q [B, 256] of the vectors with these indices [B, 256 / width] and signs."""
    values = book.vectors[index].reshape(len(index), -1)
    q: Bytes = (np.where(negative, -values, values) + OFFSET).astype(np.uint8)
    return q


def _shifted(index: Indices, lower: Signs) -> Bytes:
    """q [B, 256]: 8 times the vectors with these indices [B, 32], minus 1 if `lower`, else plus
    1."""
    values = ggml_grids.IQ1_S.vectors[index] * 8
    values += np.where(lower, -1, 1)[..., None]
    q: Bytes = (values + OFFSET).astype(np.uint8).reshape(len(index), -1)
    return q


def _scales(blocks: Blocks, factors: Integers, step: float) -> Floats:
    """d * (1/2 + factor) * step for each group."""
    halves = np.float32(0.5) + factors.astype(np.float32)
    scale: Floats = widened(blocks["d"]) * halves * np.float32(step)
    return scale


def _odd(factors: Integers) -> Floats:
    """2 * factor + 1."""
    odd: Floats = 2 * factors.astype(np.float32) + 1
    return odd


_D = ("d", "<f2")


def _book(*fields: tuple[str, str] | tuple[str, str, int]) -> np.dtype[np.void]:
    return layout(_D, *fields)


CODEBOOKS: dict[str, BlockFormat] = {
    "IQ4_NL": BlockFormat(32, _book(("qs", "u1", 16)), _split_iq4_nl, 8, offset=OFFSET),
    "IQ4_XS": BlockFormat(
        256,
        _book(("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)),
        _split_iq4_xs,
        8,
        offset=OFFSET,
    ),
    "MXFP4": BlockFormat(
        32, layout(("e", "u1"), ("qs", "u1", 16)), _split_mxfp4, 5, offset=_FP4_OFFSET
    ),
    "NVFP4": BlockFormat(
        64, layout(("d", "u1", 4), ("qs", "u1", 32)), _split_nvfp4, 8, group=16, offset=_FP4_OFFSET
    ),
    "TQ1_0": BlockFormat(
        256, layout(("qs", "u1", 48), ("qh", "u1", 4), _D), _split_tq1_0, 4, offset=1
    ),
    "TQ2_0": BlockFormat(256, layout(("qs", "u1", 64), _D), _split_tq2_0, 4, offset=1),
    "IQ2_XXS": BlockFormat(256, _book(("qs", "<u4", 16)), _split_iq2_xxs, 8, offset=OFFSET),
    "IQ2_XS": BlockFormat(
        256, _book(("qs", "<u2", 32), ("scales", "u1", 8)), _split_iq2_xs, 8, 16, OFFSET
    ),
    "IQ2_S": BlockFormat(
        256,
        _book(("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)),
        _split_iq2_s,
        8,
        16,
        OFFSET,
    ),
    "IQ3_XXS": BlockFormat(
        256, _book(("qs", "u1", 64), ("scales", "<u4", 8)), _split_iq3_xxs, 8, offset=OFFSET
    ),
    "IQ3_S": BlockFormat(
        256,
        _book(("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)),
        _split_iq3_s,
        8,
        offset=OFFSET,
    ),
    "IQ1_S": BlockFormat(
        256, _book(("qs", "u1", 32), ("qh", "<u2", 8)), _split_iq1_s, 8, offset=OFFSET
    ),
    "IQ1_M": BlockFormat(
        256,
        layout(("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)),
        _split_iq1_m,
        8,
        16,
        OFFSET,
    ),
}
