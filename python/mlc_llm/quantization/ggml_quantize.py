"""Floats as ggml's tensor types: the inverse of `ggml_blocks.py`.

The formulas are those of ggml's reference functions (`quantize_row_*_ref` in ggml-quants.c) and
give the same bits, as long as the C compiler fuses no multiplication with an addition. Blocks are
computed in columns, [values, blocks], so sums go in the order of the C code.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from mlc_llm.errors import InvalidField
from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.ggml_blocks import FLOAT_BYTES
from mlc_llm.quantization.group_schemes import ModelDtype, stored_numbers
from mlc_llm.quantization.in_parts import in_parts
from mlc_llm.quantization.k_quantize import q4_k, q5_k, q6_k
from mlc_llm.quantization.quantize_tools import first_largest, halves, reciprocal
from mlc_llm.quantization.scale_search import NUMPY, Searches
from mlc_llm.quantization.weighted_quantize import (
    best_signed,
    best_with_minimum,
    block_weights,
)

_CHUNK_VALUES = 1 << 16  # quantised at once: the copies stay in the processor's cache
_DTYPES: dict[str, ModelDtype] = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}
LARGEST = 65504.0
"""Of float16. A value or scale beyond it cannot be stored."""


def _pairs(q: Bytes) -> Bytes:
    """[B, 32] of small values -> [B, 16]: the first half in the low bits, the rest above."""
    packed: Bytes = (q[:, :16] & np.uint8(15)) | (q[:, 16:] << np.uint8(4))
    return packed


def _fifth_bits(q: Bytes) -> Bytes:
    """[B, 32] -> [B, 4]: bit 4 of each."""
    return np.packbits(q >> np.uint8(4), axis=1, bitorder="little")


def _signed(x: Floats, half: int) -> tuple[Floats, Bytes]:
    """Scale [B] and values [B, 32] in 0 .. 2 half - 1, for value = scale * (q - half)."""
    scale = first_largest(x) / np.float32(-half)
    value = x * reciprocal(scale)
    value += np.float32(half + 0.5)
    return scale, _whole(value, 2 * half - 1)


def _with_minimum(x: Floats, most: int) -> tuple[Floats, Floats, Bytes]:
    """Scale [B], minimum [B] and values [B, 32] in 0 .. most."""
    low = x.min(axis=0)
    scale = (x.max(axis=0) - low) / np.float32(most)
    value = x - low
    value *= reciprocal(scale)
    value += np.float32(0.5)
    return scale, low, _whole(value, most)


def _whole(value: Floats, most: int) -> Bytes:
    """Values, none of them negative, without their fractions, as [B, 32]."""
    whole: Bytes = np.minimum(value, most, out=value).astype(np.uint8).T
    return whole


def _packed(bits: int, scales: list[Floats], q: Bytes) -> list[Bytes]:
    """The parts of blocks of values [B, 32] with 4 or 5 bits."""
    fifth = [_fifth_bits(q)] if bits == 5 else []
    return [*map(halves, scales), *fifth, _pairs(q)]


def _plain_signed(x: Floats, bits: int) -> list[Bytes]:
    scale, q = _signed(x, 2 ** (bits - 1))
    return _packed(bits, [scale], q)


def _plain_with_minimum(x: Floats, bits: int) -> list[Bytes]:
    scale, low, q = _with_minimum(x, 2**bits - 1)
    return _packed(bits, [scale, low], q)


def _weighted_signed(x: Floats, searches: Searches, weight: Floats, bits: int) -> list[Bytes]:
    scale, q = best_signed(x, weight, 2 ** (bits - 1), searches)
    return _packed(bits, [scale], q)


def _weighted_with_minimum(x: Floats, searches: Searches, weight: Floats, bits: int) -> list[Bytes]:
    scale, low, q = best_with_minimum(x, weight, 2**bits - 1, searches)
    return _packed(bits, [scale, low], q)


def _q8_0(x: Floats) -> list[Bytes]:
    """Rounds halves away from zero, as C's roundf does."""
    scale = np.abs(x).max(axis=0) / np.float32(127)
    value = x * reciprocal(scale)
    size = np.abs(value)
    down = np.floor(size)
    down += np.floor(2 * (size - down))
    return [halves(scale), np.copysign(down, value).astype(np.int8).T.view(np.uint8)]


class Quantizer(NamedTuple):
    """How one tensor type is made: columns float32 [block, B] -> parts uint8 [B, ...], which
    stand side by side in the blocks of the file."""

    block: int
    columns: Callable[[Floats], list[Bytes]]


K_TYPES = {"Q4_K": q4_k, "Q5_K": q5_k, "Q6_K": q6_k}
"""Types whose scales are searched for."""
QUANTIZERS = {
    "Q4_0": Quantizer(32, partial(_plain_signed, bits=4)),
    "Q4_1": Quantizer(32, partial(_plain_with_minimum, bits=4)),
    "Q5_0": Quantizer(32, partial(_plain_signed, bits=5)),
    "Q5_1": Quantizer(32, partial(_plain_with_minimum, bits=5)),
    "Q8_0": Quantizer(32, _q8_0),
    **{kind: Quantizer(256, columns) for kind, columns in K_TYPES.items()},
}
WEIGHTED: dict[str, Callable[[Floats, Searches, Floats], list[Bytes]]] = {
    "Q4_0": partial(_weighted_signed, bits=4),
    "Q4_1": partial(_weighted_with_minimum, bits=4),
    "Q5_0": partial(_weighted_signed, bits=5),
    "Q5_1": partial(_weighted_with_minimum, bits=5),
    **K_TYPES,
}
"""Types whose scales the importance of columns can choose: columns [block, B], and what an error of
each value costs (of K types: the importance of its column) -> parts of the blocks."""
TARGETS = (*FLOAT_BYTES, *QUANTIZERS)
"""The tensor types that `quantize` makes."""


def quantize(kind: str, values: Floats, searches: Searches = NUMPY) -> Bytes:
    """The bytes of a tensor, rows in whole blocks, on all cores.

    kind: one of TARGETS. searches: of K types. Raises InvalidField for
    another kind, for rows that are not whole blocks, and for values that the type cannot hold.
    """
    if kind not in TARGETS:
        raise InvalidField("kind", kind, "one of " + ", ".join(TARGETS))
    _check_values(kind, values)
    if kind in FLOAT_BYTES:
        return _floats(kind, values)
    block, columns = QUANTIZERS[kind]
    if kind in K_TYPES:
        columns = partial(K_TYPES[kind], searches=searches)
    if values.shape[-1] % block:
        raise InvalidField("shape", values.shape, f"rows of whole {kind} blocks of {block} values")
    blocks = np.ascontiguousarray(values, np.float32).reshape(-1, block)
    return _in_chunks(columns, blocks)


def quantize_weighted(
    kind: str, rows: Floats, importance: Floats, searches: Searches = NUMPY
) -> Bytes:
    """The bytes of a matrix [rows, columns] whose scales are chosen so that errors cost least.

    kind: one of WEIGHTED. importance: float32 [columns], above 0. Raises InvalidField as `quantize`
    does.
    """
    if kind not in WEIGHTED:
        raise InvalidField("kind", kind, "one of " + ", ".join(WEIGHTED))
    block = QUANTIZERS[kind].block
    if rows.shape[-1] % block:
        raise InvalidField("shape", rows.shape, f"rows of whole {kind} blocks of {block} values")
    _check_values(kind, rows)
    wide = np.ascontiguousarray(rows, np.float32)
    if kind in K_TYPES:
        weights = np.broadcast_to(importance.astype(np.float32), wide.shape).reshape(-1, block)
    else:
        weights = block_weights(wide, importance)
    made = WEIGHTED[kind]
    return _in_chunks(lambda x, w: made(x, searches, w), wide.reshape(-1, block), weights)


def _in_chunks(columns: Callable[..., list[Bytes]], *given: Floats) -> Bytes:
    """The bytes of blocks [B, block], on all cores. columns: takes the columns of each of the
    given, and makes parts of the blocks."""
    parts: dict[int, Bytes] = {}

    def part(start: int, end: int) -> None:
        with np.errstate(under="ignore"):
            made = columns(*(np.ascontiguousarray(one[start:end].T) for one in given))
        parts[start] = np.concatenate(made, axis=1)

    in_parts(len(given[0]), _CHUNK_VALUES // given[0].shape[1], part)
    return np.concatenate([parts[start] for start in sorted(parts)]).reshape(-1)


def _check_values(kind: str, values: Floats) -> None:
    low, high = (float(one) for one in (values.min(), values.max()))
    if not (np.isfinite(low) and np.isfinite(high)):
        raise InvalidField("values", f"{low} .. {high}", "finite numbers")
    if kind not in ("F32", "BF16") and max(-low, high) > LARGEST:
        raise InvalidField("values", f"{low} .. {high}", f"numbers up to {LARGEST:.0f} for {kind}")


def _floats(kind: str, values: Floats) -> Bytes:
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    return stored_numbers(flat, _DTYPES[kind]).view(np.uint8)
