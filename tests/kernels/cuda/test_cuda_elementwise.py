"""Sums, factors, caps and norms of whole rows on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator

from mlc_llm.kernels.cuda.elementwise import add, beside, changed, multiply
from mlc_llm.kernels.cuda.row_norm import Way, row_norm

pytestmark = pytest.mark.cuda
WIDTH = 544
EPS = 1e-5


def rows(seed: int, width: int = WIDTH) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(3, width)).astype(np.float32)


def test_sums(emulate: Emulator) -> None:
    x, y, bias = rows(0), rows(1, WIDTH + 32), rows(2)[0, :40]
    *_, found = emulate(
        add(WIDTH, WIDTH, 0.5, has_y=True, has_bias=False, y_width=WIDTH + 32), y, x.copy()
    )
    assert np.allclose(found, x + 0.5 * y[:, :WIDTH], rtol=1e-6, atol=1e-7)
    *_, found = emulate(add(WIDTH, 40, has_y=False, has_bias=True, start=7), bias, x.copy())
    wanted = x.copy()
    wanted[:, 7:47] += bias
    assert np.allclose(found, wanted, rtol=1e-6, atol=1e-7)


def test_factors_and_caps(emulate: Emulator) -> None:
    x, out = rows(3), np.zeros((3, WIDTH), np.float32)
    assert np.allclose(emulate(changed(WIDTH, 0.3), x, out)[-1], x * 0.3, rtol=1e-6)
    capped = emulate(changed(WIDTH, cap=1.5), x, out)[-1]
    assert np.allclose(capped, 1.5 * np.tanh(x / 1.5), rtol=1e-5, atol=1e-6)
    factor = np.array([0.7], np.float32)
    assert np.allclose(emulate(multiply(WIDTH), factor, x.copy())[-1], x * factor, rtol=1e-6)


def test_columns_side_by_side(emulate: Emulator) -> None:
    a, b, out = rows(4, 100), rows(5, 90), np.zeros((3, 128), np.float32)
    *_, found = emulate(beside((100, 90), (20, 26), 64), a, b, out)
    assert found.tobytes() == np.hstack([a[:, 20:84], b[:, 26:]]).tobytes()


@pytest.mark.parametrize("way", ["rms", "layer", "add"])
def test_norms(emulate: Emulator, way: Way) -> None:
    x, y, (weight, bias, _) = rows(6) + 1, rows(7, WIDTH + 32) - 1, rows(8)
    given = {"rms": (weight,), "layer": (weight, bias), "add": (y, weight)}[way]
    kernel = row_norm(WIDTH, EPS, way, WIDTH + 32 if way == "add" else 0)
    *_, found = emulate(kernel, *given, x.copy())
    v = (y[:, :WIDTH] if way == "add" else x).astype(np.float64)
    v = v - v.mean(axis=1, keepdims=True) if way == "layer" else v
    wanted = v / np.sqrt((v * v).mean(axis=1, keepdims=True) + EPS) * weight
    wanted = wanted + {"rms": 0, "layer": bias, "add": x}[way]
    assert np.allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_machine_code() -> None:
    check_code(add(4096, 4096, has_y=True, has_bias=True), wanted={"LDG", "STG"})
    check_code(changed(49152, cap=30.0), wanted={"LDG", "STG"})
    check_code(row_norm(4096, EPS, "add"), wanted={"LDG", "STG", "SHFL", "BAR"})
