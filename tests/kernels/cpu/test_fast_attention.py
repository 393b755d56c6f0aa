"""Attention of fast tokens against float64; fast and exact rows do not change each other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from attention_tools import ALL, LENGTHS, Cache, Rounding, Rows, Window, attend, queries, reference
from kernel_tools import Array, marks_of

from mlc_llm.backends.cpu.isa import AMX, VNNI, VNNI_BF16, Isa
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.kernels.cpu.attention import has_both_products, has_pair_products
from mlc_llm.kernels.cpu.attention_shape import SPLIT_KEYS
from mlc_llm.kernels.cpu.fast_attention import has_fast_attention

FAST, PAIRS = (replace(isa, fast=True) for isa in (AMX, VNNI_BF16))
SHAPES = [
    pytest.param(shape, id=str(shape), marks=[] if of_all else pytest.mark.slow)
    for shape, of_all in (
        ((9, 3, 64), True),
        ((4, 1, 128), True),
        ((8, 2, 64), False),
        ((2, 2, 32), False),
    )
]
"""(heads, kv heads, head size)."""
EDGE = SPLIT_KEYS
BFLOAT16 = Rounding(score=2.0**-7, weight=2.0**-7)
"""Half a step of 2^-8 for each of two factors: of a score, and of a weighted value."""
ROWS: Rows = [(0, 3, 70), (4, 100, 2 * EDGE + 3), (1, 0, 16), (5, 127, 128), (3, 14, 17)]


each_isa = pytest.mark.parametrize(
    "isa",
    [pytest.param(isa, id=isa.name, marks=marks_of(isa, with_amx=True)) for isa in (FAST, PAIRS)],
)


def outcome(
    isa: Isa, shape: tuple[int, int, int], rows: Rows, fast: int | None, window: Window = ALL
) -> Array:
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    q = queries(rows, heads, head_dim)
    return attend(isa, heads, cache, rows, q, window=window, fast=fast)


@pytest.mark.one_of(6)
@pytest.mark.parametrize("window", [ALL, (1, 0), (40, 1), (20, 150), (130, 0)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@each_isa
def test_against_float64(isa: Isa, shape: tuple[int, int, int], window: Window) -> None:
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    q = queries(ROWS, heads, head_dim)
    out = attend(isa, heads, cache, ROWS, q, window=window, fast=len(ROWS))
    expected, bound = reference(heads, cache, ROWS, q, window, rounding=BFLOAT16)
    assert (np.abs(out - expected) <= bound).all()
    if window != (1, 0):  # one value, whose weight is 1, may be a bfloat16 itself
        assert (out != outcome(isa, shape, ROWS, None, window)).any(axis=1).mean() > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("window", [ALL, (40, 1)], ids=str)
@each_isa
def test_caps_and_learned_sinks(isa: Isa, window: Window) -> None:
    cache = Cache(3, 64, isa.kv_dtype, LENGTHS)
    q = queries(ROWS, 9, 64)
    sinks = np.array([-500, -2, -1, 0, 0.5, 1, 2, 4, 300], np.float32)
    asked = {"window": window, "cap": 0.9, "sinks": sinks}
    expected, bound = reference(9, cache, ROWS, q, rounding=BFLOAT16, **asked)  # type: ignore[arg-type]
    outs = [
        attend(isa, 9, cache, ROWS, q, fast=count, **asked)  # type: ignore[arg-type]
        for count in (len(ROWS), 2, None)
    ]
    for out in outs:
        assert (np.abs(out - expected) <= bound).all()
    tokens = sum(end - start for _, start, end in ROWS[:2])
    assert outs[1][:tokens].tobytes() == outs[0][:tokens].tobytes()
    assert outs[1][tokens:].tobytes() == outs[2][tokens:].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("reach", [0, 40, 127])
@each_isa
def test_windows_on_both_sides(isa: Isa, reach: int) -> None:
    texts = [(i, 0, length) for i, length in enumerate(LENGTHS)]
    cache, q = Cache(3, 64, isa.kv_dtype, LENGTHS), queries(texts, 9, 64)
    outs = [attend(isa, 9, cache, texts, q, reach=reach, fast=n) for n in (len(texts), 2, None)]
    expected, bound = reference(9, cache, texts, q, ALL, reach=reach, rounding=BFLOAT16)
    for out in outs:
        assert (np.abs(out - expected) <= bound).all()
    tokens = sum(LENGTHS[:2])
    assert outs[1][:tokens].tobytes() == outs[0][:tokens].tobytes()
    assert outs[1][tokens:].tobytes() == outs[2][tokens:].tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("window", [(5, 3), (30, 130)], ids=str)
@each_isa
def test_sinks_have_queries_of_their_own(isa: Isa, window: Window) -> None:
    cache = Cache(3, 64, isa.kv_dtype, LENGTHS)
    q = queries(ROWS, 9, 64)
    others = q[:, ::-1].copy()
    asked = {"window": window, "fast": len(ROWS)}
    out = attend(isa, 9, cache, ROWS, q, for_sinks=others, **asked)  # type: ignore[arg-type]
    expected, bound = reference(9, cache, ROWS, q, window, rounding=BFLOAT16, for_sinks=others)
    assert (np.abs(out - expected) <= bound).all()
    same = attend(isa, 9, cache, ROWS, q, for_sinks=q, **asked)  # type: ignore[arg-type]
    assert same.tobytes() == outcome(isa, (9, 3, 64), ROWS, len(ROWS), window).tobytes()


@pytest.mark.parametrize("window", [ALL, (40, 1)], ids=str)
@pytest.mark.parametrize("shape", SHAPES)
@each_isa
def test_fast_and_exact_rows_do_not_change_each_other(
    isa: Isa, shape: tuple[int, int, int], window: Window
) -> None:
    """Fast tokens alone, and exact rows without fast ones, give the same bits."""
    fast, exact = (outcome(isa, shape, ROWS, count, window) for count in (len(ROWS), None))
    for count in range(len(ROWS) + 1):
        both = outcome(isa, shape, ROWS, count, window)
        tokens = sum(end - start for _, start, end in ROWS[:count])
        assert both[:tokens].tobytes() == fast[:tokens].tobytes(), f"{count} fast rows"
        assert both[tokens:].tobytes() == exact[tokens:].tobytes(), f"{count} fast rows"
    first = 0
    for index, start, end in ROWS:
        for i in sorted({0, (end - start) // 2, end - start - 1}):
            alone = outcome(isa, shape, [(index, start + i, start + i + 1)], 1, window)
            assert alone[0].tobytes() == fast[first + i].tobytes(), f"token {start + i}"
        first += end - start


@each_isa
def test_pages_of_bytes(isa: Isa) -> None:
    of_bytes = replace(isa, byte_pages=True)
    cache, q = Cache(3, 64, "int8", LENGTHS), queries(ROWS, 9, 64)
    outs = [attend(of_bytes, 9, cache, ROWS, q, fast=n) for n in (len(ROWS), 2, None)]
    expected, bound = reference(9, cache, ROWS, q, ALL, rounding=BFLOAT16)
    for out in outs:
        assert (np.abs(out - expected) <= bound).all()
    tokens = sum(end - start for _, start, end in ROWS[:2])
    assert outs[1][:tokens].tobytes() == outs[0][:tokens].tobytes()
    assert outs[1][tokens:].tobytes() == outs[2][tokens:].tobytes()


@pytest.mark.one_of(2)
@pytest.mark.parametrize("window", [ALL, (40, 1)], ids=str)
def test_every_token_is_fast(window: Window) -> None:
    """With `precision="fast"`: the bits of fast tokens, whatever is in the step."""
    if missing_features(PAIRS.name):
        pytest.skip("not this machine")
    fast = outcome(PAIRS, (9, 3, 64), ROWS, len(ROWS), window)
    all_fast = replace(PAIRS, one_plane=True)
    assert outcome(all_fast, (9, 3, 64), ROWS, None, window).tobytes() == fast.tobytes()
    first = 0
    for index, start, end in ROWS:
        for i in range(end - start):
            alone = outcome(all_fast, (9, 3, 64), [(index, start + i, start + i + 1)], None, window)
            assert alone[0].tobytes() == fast[first + i].tobytes(), f"token {start + i}"
        first += end - start


def test_where_there_is_such_a_kernel() -> None:
    assert has_fast_attention(64, FAST)
    assert not has_fast_attention(48, FAST)
    assert not has_fast_attention(64, AMX)
    assert not has_fast_attention(64, VNNI)
    assert not has_fast_attention(64, PAIRS)
    assert has_pair_products(64, PAIRS) and has_both_products(64, PAIRS)
    assert not has_pair_products(48, PAIRS) and not has_both_products(64, VNNI_BF16)
    assert not has_pair_products(64, FAST)
    all_fast = replace(PAIRS, one_plane=True)
    assert has_pair_products(64, all_fast) and not has_both_products(64, all_fast)
