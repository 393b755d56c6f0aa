"""Block formats against the reference of the `gguf` package, bit by bit."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.ggml_blocks import BLOCK_KINDS, dequantize, unpack

SIZES = {kind: (block, size) for kind, block, size in KINDS.values()}
# where the float16 numbers stand in a block
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208],
    "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [], "NVFP4": [], "TQ1_0": [52], "TQ2_0": [64],
    "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0], "IQ1_S": [0],
    "IQ1_M": [], "F16": [0], "BF16": [0], "F32": [2],
}  # fmt: skip
SIZES_OF_GROUPS = {
    "q4f16": (32, 18),
    "q4bf16": (32, 18),
    "q4f32": (32, 20),
    "zero_point4": (32, 24),
}
"""Of what is no type of GGUF files."""
ALL_SIZES = SIZES | SIZES_OF_GROUPS
HALVES |= {"q4f16": [16], "q4bf16": [16], "q4f32": [18], "zero_point4": [18, 22]}
BY_FORMULA = [kind for kind in BLOCK_KINDS if kind != "float8_e4m3"]
"""Kinds whose values are scale * (q - offset), or with a minimum. Of 8-bit floats each byte has a
number: `test_quantized_folders.py` has them."""
FINITE = ("MXFP4", "NVFP4", "q4bf16", "q4f32", "zero_point4")
"""Formats whose scales have no infinity, or not that of float16."""


def random_bytes(kind: str, rows: int, columns: int, seed: int) -> npt.NDArray[np.uint8]:
    """Any bytes at all, but for the exponent of infinities and NaNs in the scales."""
    block, size = ALL_SIZES[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for position in HALVES[kind]:
        high = blocks[:, position + 1]
        high[(high & 0x7C) == 0x7C] ^= 0x40
    if kind == "IQ1_M":  # four words hold four bits each of its scale; these are the highest
        blocks[:, 55] &= 0xBF
    if kind == "MXFP4":  # twelve times the largest scale is no float32
        blocks[:, 0] &= 0x7F
    return blocks.reshape(-1)


def reference(kind: str, data: npt.NDArray[np.uint8], shape: tuple[int, int]) -> np.ndarray:
    gguf = pytest.importorskip("gguf")
    rows = data.reshape(shape[0], -1)
    values = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[kind])
    return np.ascontiguousarray(values, np.float32).reshape(shape)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and np.array_equal(a.view(np.uint32), b.view(np.uint32))


def rebuild(grouped: Grouped) -> npt.NDArray[np.float32]:
    """The formula of the module, written in the plainest way."""
    scale = np.repeat(grouped.scale, grouped.group, axis=1)
    if grouped.minimum is None:
        return scale * (grouped.q.astype(np.int32) - grouped.offset).astype(np.float32)
    assert grouped.offset == 0
    return scale * grouped.q.astype(np.float32) + np.repeat(grouped.minimum, grouped.group, axis=1)


# the second is more than two chunks of work and no whole number of them
@pytest.mark.parametrize("shape", [(3, 512), (1030, 512)])
@pytest.mark.parametrize("kind", SIZES)
def test_dequantize_is_the_reference(kind: str, shape: tuple[int, int]) -> None:
    data = random_bytes(kind, *shape, seed=1)
    values = dequantize(kind, data, shape)
    assert values.dtype == np.float32
    assert same_bits(values, reference(kind, data, shape))


@pytest.mark.parametrize("kind", BY_FORMULA)
def test_unpack_loses_nothing(kind: str) -> None:
    shape = (1030, 512)
    data = random_bytes(kind, *shape, seed=2)
    grouped = unpack(kind, data, shape)
    groups = (shape[0], shape[1] // grouped.group)
    assert (grouped.q.shape, grouped.scale.shape) == (shape, groups)
    assert grouped.minimum is None or grouped.minimum.shape == groups
    assert int(grouped.q.max()) < 2**grouped.bits
    assert same_bits(rebuild(grouped), dequantize(kind, data, shape))


@pytest.mark.parametrize(
    ("kind", "bits", "group", "offset", "half"),
    [
        ("Q4_0", 4, 32, 8, True),
        ("Q4_1", 4, 32, 0, True),
        ("Q5_0", 5, 32, 16, True),
        ("Q5_1", 5, 32, 0, True),
        ("Q8_0", 8, 32, 128, True),
        ("Q4_K", 4, 32, 0, False),
        ("Q5_K", 5, 32, 0, False),
        ("Q6_K", 6, 16, 32, False),
        ("Q2_K", 4, 16, 0, False),
        ("Q3_K", 4, 16, 4, False),
        ("IQ4_NL", 8, 32, 128, True),
        ("IQ4_XS", 8, 32, 128, False),
        ("IQ3_S", 8, 32, 128, False),
        ("IQ2_XS", 8, 16, 128, False),
        ("IQ1_M", 8, 16, 128, False),
        ("MXFP4", 5, 32, 12, False),
        ("NVFP4", 8, 16, 12, True),
        ("TQ1_0", 4, 32, 1, True),
        ("TQ2_0", 4, 32, 1, True),
        ("q4f16", 4, 32, 7, True),
        ("q4bf16", 4, 32, 7, False),
        ("q4f32", 4, 32, 7, False),
        ("zero_point4", 4, 32, 0, False),
    ],
)
def test_what_unpack_says(kind: str, bits: int, group: int, offset: int, half: bool) -> None:
    grouped = unpack(kind, random_bytes(kind, 16, 256, seed=3), (16, 256))
    assert (grouped.bits, grouped.group, grouped.offset) == (bits, group, offset)
    assert (grouped.minimum is None) == (offset > 0)
    assert grouped.half is half


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_scales_of_k_formats_are_whole_numbers_of_units(kind: str) -> None:
    grouped = unpack(kind, random_bytes(kind, 16, 512, seed=5), (16, 512))
    pairs = [(grouped.scale, grouped.unit), (grouped.minimum, grouped.minimum_unit)]
    for scale, unit in pairs[: 1 if grouped.minimum is None else 2]:
        assert scale is not None and unit is not None
        assert unit.shape == (16, 2) and (unit.astype(np.float16) == unit).all()
        wide = np.repeat(unit, 256 // grouped.group, axis=1)
        factor = np.rint(scale / wide)
        assert (np.abs(factor + 0.5) < 128).all() and np.array_equal(factor * wide, scale)


def test_half_is_seen_in_the_values() -> None:
    """A K format whose scales happen to be float16 numbers says so."""
    data = random_bytes("Q6_K", 4, 256, seed=4).reshape(-1, 210)
    data[:, 208:] = np.frombuffer(np.float16(0.5).tobytes(), np.uint8)
    assert unpack("Q6_K", data.reshape(-1), (4, 256)).half


def test_vector_and_three_dimensions() -> None:
    data = random_bytes("Q4_0", 6, 64, seed=5)
    flat = dequantize("Q4_0", data, (384,))
    assert flat.shape == (384,)
    assert same_bits(dequantize("Q4_0", data, (2, 3, 64)), flat.reshape(2, 3, 64))


@pytest.mark.parametrize("kind", [kind for kind in BY_FORMULA if kind not in FINITE])
def test_infinite_scales_pass_without_a_warning(kind: str) -> None:
    block, size = ALL_SIZES[kind]
    data = random_bytes(kind, 1, block, seed=6)
    if kind == "IQ1_M":
        data[49:56:2] = [0, 0, 0xC0, 0x70]  # 0x7C00
    else:
        position = HALVES[kind][0]
        data[position : position + 2] = np.frombuffer(np.float16(np.inf).tobytes(), np.uint8)
    assert not np.isfinite(dequantize(kind, data, (1, block))).all()
    assert not np.isfinite(unpack(kind, data, (1, block)).scale).all()
    assert len(data) == size


def test_bad_arguments_are_named() -> None:
    data = random_bytes("Q4_0", 1, 64, seed=7)
    with pytest.raises(InvalidField, match="kind = 'Q8_K' is not allowed"):
        dequantize("Q8_K", data, (1, 64))
    with pytest.raises(InvalidField, match="kind = 'F16' is not allowed"):
        unpack("F16", data, (1, 64))
    with pytest.raises(InvalidField, match="rows of whole blocks of 32"):
        dequantize("Q4_0", data, (4, 16))
    with pytest.raises(InvalidField, match="72 bytes for"):
        unpack("Q4_0", data, (2, 64))
    with pytest.raises(InvalidField, match="8 bytes for"):
        dequantize("F32", data, (2,))
