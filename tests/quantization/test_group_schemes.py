"""MLC LLM's group quantisation against its formula, one number after the other."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.ggml_blocks import dequantize, unpack
from mlc_llm.quantization.group_blocks import as_blocks, group_kind
from mlc_llm.quantization.group_schemes import (
    SCHEMES,
    Scheme,
    Stored,
    dequantize_groups,
    quantize_groups,
    read_numbers,
    read_stored,
    rounded,
    stored,
    stored_numbers,
)

GROUPED = [name for name, scheme in SCHEMES.items() if scheme.bits]


def weights(rows: int, columns: int, seed: int = 0) -> Floats:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((rows, columns)) * np.exp(rng.standard_normal((rows, 1)))
    return values.astype(np.float32)


def one(value: float, dtype: str) -> np.float32:
    """The nearest number of a type, for one number."""
    if dtype == "float16":
        return np.float32(np.float16(value))
    if dtype == "float32":
        return np.float32(value)
    bits = int(np.float32(value).view(np.uint32))
    low, high = bits & 0xFFFF, bits & 0xFFFF0000
    up = low > 0x8000 or (low == 0x8000 and bits & 0x10000)
    return np.uint32(high + (0x10000 if up else 0)).view(np.float32)


def plain_group(values: list[float], most: int, dtype: str) -> tuple[list[int], np.float32]:
    """q and the scale of one group, with loops; bfloat16 rounds only the scale."""
    inner = "float16" if dtype == "float16" else "float32"
    numbers = [one(value, dtype) for value in values]
    scale = one(max(abs(number) for number in numbers) / np.float32(most), dtype)
    found = []
    for number in numbers:
        if scale == 0:
            found.append(0)
            continue
        moved = one(one(number / scale, inner) + np.float32(most), inner)
        found.append(min(max(round(float(moved)), 0), 2 * most))
    return found, scale


@pytest.mark.parametrize("columns", [80, 160, 72])
@pytest.mark.parametrize("name", GROUPED)
def test_quantised_and_stored_as_the_formula_says(name: str, columns: int) -> None:
    scheme = SCHEMES[name]
    weight = weights(3, columns)
    weight[1, :40] = 0
    weight[2, :14] = np.arange(14) / 2 - 3.5  # ties
    weight[2, 14:32] = 0
    weight[2, 14] = scheme.most
    grouped = quantize_groups(scheme, weight)
    words, scales = stored(scheme, grouped, transposed=False)
    size, in_word = scheme.group_size or 0, 32 // scheme.bits
    for row in range(3):
        for start in range(0, columns, size):
            group = [float(w) for w in weight[row, start : start + size]]
            q, scale = plain_group(group, scheme.most, scheme.dtype)
            assert read_numbers(scales)[row, start // size] == scale
            assert grouped.q[row, start : start + size].tolist() == q
            q += [0] * (size - len(q))
            for j in range(0, size, in_word):
                word = sum(value << (scheme.bits * i) for i, value in enumerate(q[j : j + in_word]))
                assert words[row, (start + j) // in_word] == word


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("name", GROUPED)
def test_what_is_stored_is_read_again(name: str, transposed: bool) -> None:
    scheme = SCHEMES[name]
    grouped = quantize_groups(scheme, weights(5, 104))
    files = stored(scheme, grouped, transposed=transposed)
    if transposed:
        assert files.q_scale.shape[1] == files.q_weight.shape[1] == 5
    again = read_stored(scheme, files, 104, transposed=transposed)
    assert np.array_equal(again.q, grouped.q)
    assert np.array_equal(again.scale, grouped.scale)
    assert (again.bits, again.group, again.offset) == (4, scheme.group_size, scheme.most)


@pytest.mark.parametrize("name", GROUPED)
def test_dequantised_values_are_near_and_follow_the_formula(name: str) -> None:
    scheme = SCHEMES[name]
    weight = weights(4, 104, seed=1)
    grouped = quantize_groups(scheme, weight)
    values = dequantize_groups(grouped)
    for row, column in ((0, 0), (1, 39), (2, 40), (3, 103)):
        scale = grouped.scale[row, column // grouped.group]
        q = int(grouped.q[row, column])
        assert values[row, column] == np.float32(q - scheme.most) * scale
    steps = np.repeat(grouped.scale, grouped.group, axis=1)[:, :104]
    assert (np.abs(values - weight) <= 0.52 * steps).all()


def test_many_rows_are_computed_as_one_by_one() -> None:
    scheme = SCHEMES["q4f16_1"]
    weight = weights(300, 1024)
    whole = quantize_groups(scheme, weight)
    for row in (0, 63, 64, 299):
        alone = quantize_groups(scheme, weight[row : row + 1])
        assert np.array_equal(alone.q[0], whole.q[row])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_numbers_of_a_type(dtype: str) -> None:
    values = np.array([0, -0.0, 1, 1.00390625, 1.01171875, 3.1415927, -1e-5, 65000], np.float32)
    expected = np.array([one(float(v), dtype) for v in values], np.float32)
    assert np.array_equal(rounded(values, dtype), expected)
    assert np.array_equal(read_numbers(stored_numbers(values, dtype)), expected)


def test_shapes_that_do_not_fit_are_named() -> None:
    scheme = SCHEMES["q4f16_1"]
    words: npt.NDArray[np.uint32] = np.zeros((2, 8), np.uint32)
    with pytest.raises(InvalidField, match=r"q_weight = '\[2, 8\] with scales \[2, 1\]'"):
        read_stored(scheme, Stored(words, np.zeros((2, 1), np.float16)), 64, transposed=False)
    with pytest.raises(InvalidField, match="quantization = 'q0f16' is not allowed: one with group"):
        quantize_groups(SCHEMES["q0f16"], weights(1, 32))


def test_bits_per_weight() -> None:
    bits = {name: scheme.bits_per_weight for name, scheme in SCHEMES.items()}
    assert (bits["q4f16_1"], bits["q4f32_1"], bits["q0f32"]) == (4.5, 5.0, 32)
    assert bits["q3f16_1"] == pytest.approx(3.6)
    assert isinstance(SCHEMES["q4f16_1"], Scheme)


@pytest.mark.parametrize("name", ["q4f16_1", "q4bf16_1", "q4f32_1"])
def test_groups_side_by_side_are_blocks(name: str) -> None:
    scheme = SCHEMES[name]
    grouped = quantize_groups(scheme, weights(6, 96))
    data = as_blocks(*stored(scheme, grouped, transposed=False))
    kind = group_kind(scheme)
    assert kind is not None
    assert np.array_equal(dequantize(kind, data, (6, 96)), dequantize_groups(grouped))
    again = unpack(kind, data, (6, 96))
    assert np.array_equal(again.q, grouped.q)
    assert np.array_equal(again.scale, grouped.scale)
    assert again.offset == grouped.offset == 7
