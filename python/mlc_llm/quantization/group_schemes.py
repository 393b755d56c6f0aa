"""MLC LLM's schemes: how all weights of a model are stored, by a name such as `q4f16_1`.

A name says bits, numbers and layout: q4 f16 _1. Weights of a row are quantised in groups:

    scale = max |w| / most          most = 2^(bits - 1) - 1
    q     = round(w / scale + most) limited to 0 .. 2 most; halves to even
    w     ~ (q - most) * scale

w and scale are numbers of the model's type. In float16 each operation is rounded to float16; in
bfloat16 only w and scale are. That is how TVM computes MLC LLM's formulas (`GroupQuantize` in
mlc_llm/quantization/group_quantization.py). A group of zeros has q = 0.

In files `q_weight` is uint32 [rows, words], the first value of a word in its lowest bits, and
`q_scale` is [rows, groups]. The layout KN has both the other way round. The last group of a row
may have fewer values; the bits behind them are 0.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import InvalidField
from mlc_llm.quantization.block_format import Bytes, Floats, Grouped
from mlc_llm.quantization.in_parts import in_parts
from mlc_llm.record import record

ModelDtype = Literal["float16", "bfloat16", "float32"]
Words = npt.NDArray[np.uint32]
_FACTORS = (0.97, 0.94, 0.91, 0.88, 0.85, 0.82, 0.79, 0.76, 0.72, 0.68)
"""Of the usual scale. Smaller ones cut the largest weights and round the others less."""
_CHUNK_VALUES = 1 << 16  # quantised at once: the copies stay in the processor's cache


@record()
class Scheme:
    """How the weights of a model are stored. `bits` 0: they are plain numbers of `dtype`."""

    name: str
    dtype: ModelDtype
    """Of scales, and of all that is not quantised."""
    bits: Literal[0, 3, 4] = 0
    group_size: Literal[None, 32, 40] = None
    """Weights of a row that share a scale."""
    transposed: bool = False
    """Matrices have the layout KN, columns first. Embeddings never have it."""
    ends: bool = True
    """The embedding and the head are quantised too."""
    has_minimum: bool = False

    @property
    def most(self) -> int:
        """The largest value, and the offset of the stored ones."""
        most: int = 2 ** (self.bits - 1) - 1
        return most

    @property
    def in_word(self) -> int:
        """Values of a uint32 word."""
        return 32 // self.bits

    def sizes(self, columns: int) -> tuple[int, int]:
        """Groups, and words, of a row."""
        groups = -(-columns // (self.group_size or columns))
        return groups, groups * ((self.group_size or 0) // self.in_word)

    @property
    def bits_per_weight(self) -> float:
        """Bits of a quantised weight, with its share of the scale."""
        number = 32 if self.dtype == "float32" else 16
        if self.group_size is None:
            return number
        return (32 * self.group_size / self.in_word + number) / self.group_size


SCHEMES = {
    scheme.name: scheme
    for scheme in (
        Scheme("q0f16", "float16"),
        Scheme("q0bf16", "bfloat16"),
        Scheme("q0f32", "float32"),
        Scheme("q3f16_0", "float16", 3, 40, transposed=True),
        Scheme("q3f16_1", "float16", 3, 40),
        Scheme("q4f16_0", "float16", 4, 32, transposed=True),
        Scheme("q4f16_1", "float16", 4, 32),
        Scheme("q4f16_2", "float16", 4, 32, ends=False),
        Scheme("q4bf16_0", "bfloat16", 4, 32, transposed=True),
        Scheme("q4bf16_1", "bfloat16", 4, 32),
        Scheme("q4f32_1", "float32", 4, 32),
    )
}
"""By name, as in MLC LLM (`QUANTIZATION` in mlc_llm/quantization/quantization.py)."""


class Stored(NamedTuple):
    """A matrix as the files of a scheme have it: uint32, and float16, float32 or (bfloat16) the
    upper halves of float32 as uint16."""

    q_weight: Words
    q_scale: npt.NDArray[np.generic]


def rounded(values: Floats, dtype: ModelDtype) -> Floats:
    """The nearest numbers of a type, as float32; halves to even."""
    if dtype == "float32":
        return values
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return read_numbers(_upper_halves(values))


def stored_numbers(values: Floats, dtype: ModelDtype) -> npt.NDArray[np.generic]:
    """Numbers as files have them: see `Stored`."""
    if dtype == "bfloat16":
        return _upper_halves(values)
    with np.errstate(over="ignore"):
        return values.astype(dtype)


def read_numbers(stored: npt.NDArray[np.generic]) -> Floats:
    """The float32 values of what `stored_numbers` gives."""
    if stored.dtype == np.uint16:
        floats: Floats = (stored.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return floats
    return stored.astype(np.float32)


def _upper_halves(values: Floats) -> npt.NDArray[np.uint16]:
    """bfloat16 as uint16; finite values only."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    halves: npt.NDArray[np.uint16] = ((bits + odd + np.uint32(0x7FFF)) >> np.uint32(16)).astype(
        "u2"
    )
    return halves


def quantize_groups(scheme: Scheme, weight: Floats, importance: Floats | None = None) -> Grouped:
    """A weight float32 [rows, columns] by the formula above, on all cores. A scale that does not
    fit the model's type is infinite.

    importance: float32 [columns], what an error in each column costs. Then each group gets the
    scale, of several, whose errors cost least.
    """
    rows, columns = weight.shape
    size = _group_size(scheme)
    q = np.empty((rows, columns), np.uint8)
    scale = np.empty((rows, -(-columns // size)), np.float32)

    def part(start: int, end: int) -> None:
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            rows = weight[start:end]
            part_q, part_scale = _quantized(scheme, rounded(rows, scheme.dtype))
            if importance is not None:
                _choose_scales(scheme, rows, importance, part_q, part_scale)
            q[start:end], scale[start:end] = part_q, part_scale

    in_parts(rows, max(1, _CHUNK_VALUES // columns), part)
    return _grouped(scheme, q, scale)


def _group_size(scheme: Scheme) -> Literal[32, 40]:
    if scheme.group_size is None:
        allowed = ", ".join(name for name, one in SCHEMES.items() if one.bits)
        raise InvalidField("quantization", scheme.name, f"one with groups: {allowed}")
    return scheme.group_size


def _grouped(scheme: Scheme, q: Bytes, scale: Floats) -> Grouped:
    return Grouped(
        q, 4, _group_size(scheme), scale, None, scheme.most, half=scheme.dtype == "float16"
    )


def _quantized(scheme: Scheme, weight: Floats) -> tuple[Bytes, Floats]:
    """weight: rounded to the model's type already."""
    rows, columns = weight.shape
    groups = _in_groups(weight, _group_size(scheme))
    largest = np.maximum(groups.max(axis=2), -groups.min(axis=2))
    scale = rounded(largest / np.float32(scheme.most), scheme.dtype)
    value = groups / scale[:, :, None]
    if scheme.dtype == "float16":
        value = rounded(value, "float16")
    value += np.float32(scheme.most)
    if scheme.dtype == "float16":
        value = rounded(value, "float16")
    np.rint(value, out=value)
    np.fmin(np.fmax(value, 0, out=value), 2 * scheme.most, out=value)  # NaN (0 / 0) becomes 0
    return value.astype(np.uint8).reshape(rows, -1)[:, :columns], scale


def _choose_scales(
    scheme: Scheme, weight: Floats, importance: Floats, q: Bytes, scale: Floats
) -> None:
    """Change q and scale of each group to the best of `_FACTORS`, then to the least squares of it,
    where that is better."""
    size, columns = _group_size(scheme), weight.shape[1]
    groups, cost = _in_groups(weight, size), _in_groups(importance[None], size)
    best = _in_groups(q.astype(np.float32), size) - np.float32(scheme.most)
    first, error = scale.copy(), _error(groups, best, scale, cost)
    for factor in (*_FACTORS, None):
        if factor is None:
            weighted = best * cost
            total = (weighted * best).sum(axis=2)
            fit = (weighted * groups).sum(axis=2) / np.where(total > 0, total, 1)
            now, tried = rounded(fit.astype(np.float32), scheme.dtype), best
        else:
            now = rounded(first * np.float32(factor), scheme.dtype)
            tried = np.rint(groups / np.where(now > 0, now, 1)[:, :, None])
            np.clip(tried, -scheme.most, scheme.most, out=tried)
        new = _error(groups, tried, now, cost)
        better = new < error
        error[better], scale[better], best[better] = new[better], now[better], tried[better]
    q[...] = (best + scheme.most).astype(np.uint8).reshape(len(q), -1)[:, :columns]


def _error(groups: Floats, q: Floats, scale: Floats, cost: Floats) -> Floats:
    """[rows, groups]: what the errors of q * scale cost."""
    difference = q * scale[:, :, None]
    difference -= groups
    difference *= difference
    difference *= cost
    total: Floats = difference.sum(axis=2)
    return total


def _in_groups(values: Floats, size: int) -> Floats:
    """[rows, groups, size], the last group filled with zeros."""
    missing = -values.shape[1] % size
    if missing:
        values = np.pad(values, ((0, 0), (0, missing)))
    return values.reshape(len(values), -1, size)


def dequantize_groups(grouped: Grouped) -> Floats:
    """(q - most) * scale, float32 [rows, columns]: exact, where MLC LLM's kernels round it to the
    model's type."""
    value = grouped.q.astype(np.float32)
    value -= np.float32(grouped.offset)
    whole = value.shape[1] // grouped.group
    inner = value[:, : whole * grouped.group].reshape(len(value), whole, grouped.group)
    inner *= grouped.scale[:, :whole, None]
    value[:, whole * grouped.group :] *= grouped.scale[:, whole:]
    return value


def stored(scheme: Scheme, grouped: Grouped, *, transposed: bool) -> Stored:
    """As in files. transposed: the layout KN."""
    words = _words(scheme, grouped.q)
    scale = stored_numbers(grouped.scale, scheme.dtype)
    if transposed:
        return Stored(np.ascontiguousarray(words.T), np.ascontiguousarray(scale.T))
    return Stored(words, scale)


def _words(scheme: Scheme, q: Bytes) -> Words:
    """uint32 [rows, words]."""
    rows, columns = q.shape
    missing = -columns % _group_size(scheme)
    padded = np.pad(q, ((0, 0), (0, missing))) if missing else q
    values = padded.reshape(rows, -1, scheme.in_word)
    if scheme.bits == 4:  # a byte is two values
        octets = values[:, :, ::2] | (values[:, :, 1::2] << np.uint8(4))
        return np.ascontiguousarray(octets).view("<u4").reshape(rows, -1)
    words = np.zeros(values.shape[:2], np.uint32)
    for i in range(scheme.in_word):
        words |= values[:, :, i].astype(np.uint32) << np.uint32(scheme.bits * i)
    return words


def read_stored(scheme: Scheme, given: Stored, columns: int, *, transposed: bool) -> Grouped:
    """What `stored` was made of. columns: of the matrix; rows are those of the scales. Raises
    InvalidField if the shapes do not fit each other."""
    words, scale = (one.T if transposed else one for one in given)
    _group_size(scheme)
    groups, wide = scheme.sizes(columns)
    expected = (len(scale), wide)
    if words.shape != expected or scale.shape[1] != groups:
        shown = f"{list(words.shape)} with scales {list(scale.shape)}"
        raise InvalidField("q_weight", shown, f"{list(expected)} with scales [rows, {groups}]")
    shifts = np.arange(scheme.in_word, dtype=np.uint32) * np.uint32(scheme.bits)
    mask = np.uint32(2**scheme.bits - 1)
    q = np.empty((*words.shape, scheme.in_word), np.uint8)
    for i, shift in enumerate(shifts):
        q[:, :, i] = (words >> shift) & mask
    q = q.reshape(len(words), -1)[:, :columns]
    return _grouped(scheme, np.ascontiguousarray(q), read_numbers(np.ascontiguousarray(scale)))
