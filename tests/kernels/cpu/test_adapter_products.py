"""The products of LoRA adapters, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.adapters import STEP, adapter_down, adapter_up

RANKS = [3, 8, 0]
R = 8
SLOTS = [1, -1, 0, 1, 2, -1, 0]


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("widths", [(96, 32, 32), (40,)])
@each_isa()
def test_products(isa: Isa, widths: tuple[int, ...]) -> None:
    k, rows = 72, sum(widths)
    multiply = build(isa, adapter_down, k, len(widths), isa.lanes)
    add = build(isa, adapter_up, rows + 24, widths, isa.lanes)
    for slots in (SLOTS, [0], [-1]):
        rng, m = np.random.default_rng(0), len(slots)
        x, y = normal(rng, m, k), normal(rng, m, rows + 24)
        down, up = normal(rng, 3, len(widths), R, k), normal(rng, 3, R, rows)
        for a, rank in enumerate(RANKS):
            down[a, :, rank:], up[a, rank:] = 0, 0
        h = np.full((m, len(widths), R), np.nan, np.float32)
        tables = np.array(RANKS, np.int32), np.array(slots, np.int32)
        expected, before = y.astype(np.float64), y.copy()
        for t, a in enumerate(slots):
            for p, width in enumerate(widths):
                first = sum(widths[:p])
                if a >= 0:
                    small = down[a, p].astype(np.float64) @ x[t]
                    expected[t, first : first + width] += small @ up[a, :, first : first + width]
        multiply(x, down, *tables, h)
        add(h, up, *tables, y)
        assert np.abs(y - expected).max() <= 1e-4
        untouched = [t for t, a in enumerate(slots) if a < 0]
        assert y[untouched].tobytes() == before[untouched].tobytes()
        assert y[:, rows:].tobytes() == before[:, rows:].tobytes()


@each_isa()
def test_a_tokens_bits_do_not_depend_on_other_tokens(isa: Isa) -> None:
    rng, k, widths = np.random.default_rng(0), 64, (64, 32)
    x, y = normal(rng, len(SLOTS), k), normal(rng, len(SLOTS), 96)
    down, up = normal(rng, 3, 2, R, k), normal(rng, 3, R, 96)
    ranks = np.array([STEP, 8, 4], np.int32)

    def computed(tokens: list[int]) -> np.ndarray:
        slots, out = np.array([SLOTS[t] for t in tokens], np.int32), y[tokens].copy()
        h = np.zeros((len(tokens), 2, R), np.float32)
        multiply(x[tokens].copy(), down, ranks, slots, h)
        add(h, up, ranks, slots, out)
        return out

    multiply = build(isa, adapter_down, k, 2, isa.lanes)
    add = build(isa, adapter_up, 96, widths, isa.lanes)
    together = computed(list(range(len(SLOTS))))
    for t in range(len(SLOTS)):
        assert computed([t]).tobytes() == together[t].tobytes()
