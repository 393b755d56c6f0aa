"""Quantised blocks against the `gguf` package and known answers of ggml's C code, bit by bit."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from mlc_llm.backends.cpu.k_searches import compiled_searches
from mlc_llm.errors import InvalidField
from mlc_llm.loader.gguf_tensors import KINDS
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.quantization.ggml_quantize import QUANTIZERS, TARGETS, quantize, quantize_weighted
from mlc_llm.quantization.scale_search import NUMPY

PLAIN = [kind for kind in TARGETS if not kind.endswith("_K")]
KNOWN = {
    "Q4_K": "a60128259efc7aac5b3277abf630af48",
    "Q5_K": "986a9bf0453aa3272f912b411d62be90",
    "Q6_K": "c7780577605e7cde41dd15135c38aca5",
}
"""SHA-256 (its beginning) of what quantize_row_*_ref of llama.cpp 0c1e57098 makes of `hard`,
compiled with -O2 -ffp-contract=off."""

KNOWN_WEIGHTED = {
    "Q4_0": "9bc1fa2abc5f5c004147d0bf607af4b6",
    "Q4_1": "7c78fbe2e2b62094adfebd69e2b2c1bc",
    "Q5_0": "837d2ce5a5795c260a0156e0cadad0ac",
    "Q5_1": "581856e41dd02f85d0464dda841dec89",
    "Q4_K": "35b3fa9232007d558afd08c3978f0955",
    "Q5_K": "edce6599f0cfb0d68a6d188bdff95b65",
    "Q6_K": "560978b7d511b96251ebb5796206e086",
}
"""The same of quantize_q4_0 and the others with an importance (llama-cpp-python 0.3.36)."""


def hard() -> Floats:
    """Ordinary rows of several sizes, and rows of which each is a special case."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((64, 512)) * 2.0 ** rng.integers(-3, 3, (64, 1))
    x = x.astype(np.float32)
    x[0, :64] = 0
    x[1] = 0
    x[2] = 1
    x[3, :40] = -0.5
    x[4] = np.abs(x[4])
    x[5] = -np.abs(x[5])
    x[6] *= 1e-8
    x[7] *= 1e-20
    x[8, ::3] = 0
    x[9, :256] = 0
    x[9, 3] = 5
    x[10] = np.round(x[10] * 4)
    x[11] *= 1e3
    x[12, :32] *= 1e-6
    x[13, 64:] *= 1e-5
    x[14] = 0.25
    x[14, 5] = -0.25
    x[15] = -0.0
    return x


@pytest.mark.parametrize("kind", PLAIN)
def test_plain_types_are_those_of_the_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    expected = gguf.quants.quantize(hard(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(quantize(kind, hard()), expected.reshape(-1).view(np.uint8))


@pytest.mark.parametrize("kind", KNOWN)
def test_k_types_are_those_of_the_c_code(kind: str) -> None:
    found = hashlib.sha256(quantize(kind, hard()).tobytes()).hexdigest()
    assert found[: len(KNOWN[kind])] == KNOWN[kind]


@pytest.mark.parametrize("kind", KNOWN)
def test_compiled_code_gives_the_bits_of_the_c_code(kind: str) -> None:
    searches = compiled_searches()
    if searches is None:
        pytest.skip("no compiled search for this processor")
    found = hashlib.sha256(quantize(kind, hard(), searches).tobytes()).hexdigest()
    assert found[: len(KNOWN[kind])] == KNOWN[kind]
    odd = np.random.default_rng(5).standard_normal((3, 256)).astype(np.float32)
    assert np.array_equal(quantize(kind, odd, searches), quantize(kind, odd))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", KNOWN_WEIGHTED)
def test_weighted_types_are_those_of_the_c_code(kind: str, compiled: bool) -> None:
    searches = compiled_searches() if compiled else NUMPY
    if searches is None:
        pytest.skip("no compiled search for this processor")
    importance = np.random.default_rng(7).uniform(0.01, 3, 512).astype(np.float32)
    made = quantize_weighted(kind, hard(), importance, searches)
    found = hashlib.sha256(made.tobytes()).hexdigest()
    assert found[: len(KNOWN_WEIGHTED[kind])] == KNOWN_WEIGHTED[kind]


@pytest.mark.parametrize("kind", KNOWN_WEIGHTED)
def test_one_weighted_row_is_computed_as_among_many(kind: str) -> None:
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((40, 256)).astype(np.float32)
    importance = rng.uniform(0.01, 3, 256).astype(np.float32)
    whole = quantize_weighted(kind, rows, importance).reshape(40, -1)
    assert np.array_equal(quantize_weighted(kind, rows[7:8], importance), whole[7])


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q4_K"])
def test_errors_go_where_they_cost_least(kind: str) -> None:
    x = np.random.default_rng(3).standard_normal((64, 512)).astype(np.float32)
    importance = np.ones(512, np.float32)
    importance[::32] = 100
    cost = {}
    for name, made in (
        ("plain", quantize(kind, x)), ("weighted", quantize_weighted(kind, x, importance))
    ):  # fmt: skip
        cost[name] = (importance * (dequantize(kind, made, x.shape) - x) ** 2).mean()
    assert cost["weighted"] < 0.6 * cost["plain"]


@pytest.mark.parametrize("kind", QUANTIZERS)
def test_one_block_is_computed_as_among_many(kind: str) -> None:
    """Sums of few columns would be added in another order, if NumPy were left to choose."""
    block, size = next((b, s) for name, b, s in KINDS.values() if name == kind)
    rows = np.random.default_rng(2).standard_normal((700, 256)).astype(np.float32)
    whole = quantize(kind, rows).reshape(-1, size)
    for i in (0, 300, len(whole) - 1):
        alone = quantize(kind, rows.reshape(-1, block)[i : i + 1])
        assert np.array_equal(alone, whole[i])


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("Q4_0", 0.11), ("Q4_1", 0.09), ("Q5_0", 0.06), ("Q5_1", 0.05), ("Q8_0", 0.007),
        ("Q4_K", 0.08), ("Q5_K", 0.04), ("Q6_K", 0.02), ("F16", 3e-4), ("BF16", 3e-3), ("F32", 0),
    ],
)  # fmt: skip
def test_values_come_back(kind: str, error: float) -> None:
    x = np.random.default_rng(3).standard_normal((16, 512)).astype(np.float32)
    again = dequantize(kind, quantize(kind, x), x.shape)
    assert np.sqrt(np.mean((again - x) ** 2)) <= error


def test_bad_values_are_named() -> None:
    x = np.ones((2, 256), np.float32)
    with pytest.raises(InvalidField, match="kind = 'Q2_K' is not allowed: one of F32, F16, BF16"):
        quantize("Q2_K", x)
    with pytest.raises(InvalidField, match="rows of whole Q4_K blocks of 256 values"):
        quantize("Q4_K", x[:, :64])
    x[1, 3] = np.nan
    with pytest.raises(InvalidField, match="finite numbers"):
        quantize("F32", x)
    x[1, 3] = 1e6
    with pytest.raises(InvalidField, match="numbers up to 65504 for Q8_0"):
        quantize("Q8_0", x)
