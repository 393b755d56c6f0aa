"""The products of LoRA adapters, against NumPy."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.adapter_groups import TOKENS, group_tokens, table_size
from mlc_llm.kernels.cpu.adapters import STEP, add_adapters
from mlc_llm.library.adapter_format import block_rows

RANKS = [3, 8, 0]
R = 8
SLOTS = [1, -1, 0, 1, 2, -1, 0]
MANY = [(7 * t // 3) % 4 - 1 for t in range(2 * TOKENS + 5)]
"""More than one token block."""


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def factors(
    rng: np.random.Generator, isa: Isa, parts: int, k: int, rows: int
) -> tuple[np.ndarray, np.ndarray]:
    """`down` and `up` of adapters of RANKS."""
    down, up = normal(rng, 3, parts, R, k), normal(rng, 3, R, rows)
    for a, rank in enumerate(RANKS):
        down[a, :, rank:], up[a, rank:] = 0, 0
    return down.astype(isa.adapter_dtype), up.astype(isa.adapter_dtype)


def in_blocks(up: np.ndarray, widths: tuple[int, ...]) -> np.ndarray:
    """As kernels read it (`library/adapter_format.py`)."""
    shape = (*up.shape[:2], -1, block_rows(widths))
    return np.ascontiguousarray(up.reshape(shape).swapaxes(1, 2))


def groups_of(isa: Isa, slots: np.ndarray) -> np.ndarray:
    """Which tokens have the same adapter, as a kernel finds it."""
    table = np.full(table_size(len(slots)), -7, np.int32)
    build(isa, group_tokens)(slots, table)
    return table


@each_isa()
def test_groups(isa: Isa) -> None:
    for slots in (SLOTS, MANY, [0], [-1]):
        table, m = groups_of(isa, np.array(slots, np.int32)).tolist(), len(slots)
        first, listed = table[1 : table[0] + 2], table[m + 2 :]
        found = [listed[a:b] for a, b in pairwise(first)]
        expected: dict[tuple[int, int], list[int]] = {}
        for t, slot in enumerate(slots):
            if slot >= 0:
                expected.setdefault((t // TOKENS, slot), []).append(t)
        assert found == list(expected.values())
        assert first[0] == 0


@pytest.mark.one_of(2)
@pytest.mark.parametrize("widths", [(96, 32, 32), (40,)])
@each_isa()
def test_products(isa: Isa, widths: tuple[int, ...]) -> None:
    k, rows = 72, sum(widths)
    add = build(isa, add_adapters, "plain", k, rows + 24, widths, isa.adapter_dtype, isa.lanes)
    for slots in (SLOTS, MANY, [0], [-1]):
        rng, m = np.random.default_rng(0), len(slots)
        x, y = normal(rng, m, k), normal(rng, m, rows + 24)
        down, up = factors(rng, isa, len(widths), k, rows)
        tables = np.array(RANKS, np.int32), np.array(slots, np.int32)
        expected, before = y.astype(np.float64), y.copy()
        for t, a in enumerate(slots):
            for p, width in enumerate(widths):
                first = sum(widths[:p])
                if a >= 0:
                    small = down[a, p].astype(np.float64) @ x[t]
                    expected[t, first : first + width] += small @ up[a, :, first : first + width]
        add(x, x, down, in_blocks(up, widths), *tables, groups_of(isa, tables[1]), y)
        assert np.abs(y - expected).max() <= 1e-4
        untouched = [t for t, a in enumerate(slots) if a < 0]
        assert y[untouched].tobytes() == before[untouched].tobytes()
        assert y[:, rows:].tobytes() == before[:, rows:].tobytes()


@each_isa()
def test_adapters_that_leave_the_matrix_alone(isa: Isa) -> None:
    rng, k, slots = np.random.default_rng(0), 64, np.array([0, 1], np.int32)
    x, y = normal(rng, 2, k), normal(rng, 2, 32)
    down, up = factors(rng, isa, 1, k, 32)
    found, ranks = y.copy(), np.zeros(3, np.int32)
    add = build(isa, add_adapters, "plain", k, 32, (32,), isa.adapter_dtype, isa.lanes)
    add(x, x, down, in_blocks(up, (32,)), ranks, slots, groups_of(isa, slots), found)
    assert found.tobytes() == y.tobytes()


@each_isa()
def test_a_tokens_bits_do_not_depend_on_other_tokens(isa: Isa) -> None:
    rng, k, widths = np.random.default_rng(0), 64, (64, 32)
    x, y = normal(rng, len(MANY), k), normal(rng, len(MANY), 96)
    down, up = factors(rng, isa, 2, k, 96)
    up = in_blocks(up, widths)
    ranks = np.array([STEP, 8, 4], np.int32)

    def computed(tokens: list[int]) -> np.ndarray:
        slots, out = np.array([MANY[t] for t in tokens], np.int32), y[tokens].copy()
        given, table = x[tokens].copy(), groups_of(isa, slots)
        add(given, given.copy(), down, up, ranks, slots, table, out)
        return out

    add = build(isa, add_adapters, "plain", k, 96, widths, isa.adapter_dtype, isa.lanes)
    together = computed(list(range(len(MANY))))
    for t in range(len(MANY)):
        assert computed([t]).tobytes() == together[t].tobytes()


@pytest.mark.one_of(4)
@pytest.mark.parametrize("kind", ["norm", "silu"])
@each_isa()
def test_what_is_read_is_made_first(isa: Isa, kind: str) -> None:
    """Of tokens with an adapter: the result is that of the made numbers as they are."""
    rng, k, rows, m, eps = np.random.default_rng(0), 64, 96, len(MANY), 1e-5
    x, weight = normal(rng, m, 2 * k if kind == "silu" else k), normal(rng, k)
    wide = x.astype(np.float64)
    if kind == "norm":
        made = wide / np.sqrt((wide**2).mean(axis=1, keepdims=True) + eps) * weight
    else:
        made = wide[:, :k] / (1 + np.exp(-wide[:, :k])) * wide[:, k:]
    y, plain = np.zeros((m, rows), np.float32), np.zeros((m, rows), np.float32)
    down, up = factors(rng, isa, 1, k, rows)
    slots = np.array(MANY, np.int32)
    rest = down, in_blocks(up, (rows,)), np.array(RANKS, np.int32), slots, groups_of(isa, slots)
    options = rows, (rows,), isa.adapter_dtype, isa.lanes
    build(isa, add_adapters, kind, k, *options, eps)(x, weight if kind == "norm" else x, *rest, y)
    floats = made.astype(np.float32)
    build(isa, add_adapters, "plain", k, *options)(floats, floats, *rest, plain)
    assert np.abs(plain).max() > 1
    assert np.abs(y - plain).max() <= 1e-4 * np.abs(plain).max()
