"""Attention over paged keys and values, against a float64 softmax over what the pages hold."""

from __future__ import annotations

import numpy as np
import pytest
from attention_tools import ALL, LENGTHS, Cache, Rows, Window, attend, queries, reference
from kernel_tools import each_isa, each_isa_and

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.attention_shape import SPLIT_KEYS
from mlc_llm.kernels.cpu.attention_tasks import WORKERS
from mlc_llm.runtime.limits import SINK_BLOCK

SHAPES = [(2, 2, 64), (9, 3, 64), (8, 2, 64), (8, 1, 64), (6, 2, 128), (4, 2, 16)]
"""(heads, kv heads, head size): 1, 3, 4 and 8 query heads a key head; the tiny model's size."""
MORE_SHAPES = [(4, 4, 128), (4, 1, 128), (16, 2, 128), (3, 1, 32), (5, 1, 48), (14, 1, 64)]
SIZES = [80, 96, 112, 192, 256]
"""Head sizes of models that the shapes above have not."""


def check(isa: Isa, shape: tuple[int, int, int], rows: Rows, window: Window = ALL) -> None:
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    q = queries(rows, heads, head_dim)
    out = attend(isa, heads, cache, rows, q, window=window)
    expected, bound = reference(heads, cache, rows, q, window)
    assert (np.abs(out - expected) <= bound).all()


def test_a_block_of_sinks_is_a_kv_split() -> None:
    assert SINK_BLOCK == SPLIT_KEYS


def check_alone(isa: Isa, shape: tuple[int, int, int], window: Window = ALL) -> None:
    """Every token of a prefill, decoded alone, gives the very bits."""
    heads, kv_heads, head_dim = shape
    cache = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS)
    edge = SPLIT_KEYS
    rows = [(0, 3, 70), (1, 0, 16), (2, 32, 33), (4, edge - 2, 2 * edge + 3), (5, edge - 3, edge)]
    out = attend(isa, heads, cache, rows, queries(rows, heads, head_dim), window=window)
    first = 0
    for index, start, end in rows:
        count = end - start
        for i in sorted({0, min(1, count - 1), count // 2, max(0, count - 2), count - 1}):
            token = [(index, start + i, start + i + 1)]
            alone = attend(isa, heads, cache, token, queries(token, heads, head_dim), window=window)
            assert alone[0].tobytes() == out[first + i].tobytes(), f"token {start + i}"
        first += count


BATCHES: dict[str, Rows] = {
    "first-token": [(0, 0, 1)],
    "one-page": [(1, 0, 16)],
    "decode": [(0, 69, 70), (1, 15, 16), (2, 32, 33), (3, 16, 17)],
    "prefill": [(0, 0, 70)],
    "long": [(4, 2 * SPLIT_KEYS + 2, 2 * SPLIT_KEYS + 3)],
    "longer": [(4, 100, 2 * SPLIT_KEYS + 3), (5, 127, 128), (0, 69, 70)],
    "mixed": [(0, 30, 47), (1, 7, 8), (2, 0, 33), (3, 14, 17)],
}


@pytest.mark.one_of(6)
@each_isa()
def test_many_rows_that_decode(isa: Isa) -> None:
    """A worker does several tasks, one after the other."""
    rows = [(4, place, place + 1) for place in range(0, LENGTHS[4], 2)]
    assert len(rows) * 3 > 2 * WORKERS
    check(isa, (9, 3, 64), rows)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("batch", BATCHES)
@each_isa_and("shape", SHAPES)
def test_against_float64(isa: Isa, shape: tuple[int, int, int], batch: str) -> None:
    check(isa, shape, BATCHES[batch])


@each_isa_and("shape", SHAPES)
def test_decoding_gives_what_prefill_gives(isa: Isa, shape: tuple[int, int, int]) -> None:
    check_alone(isa, shape)


@pytest.mark.one_of(6)
@pytest.mark.parametrize(
    "window", [(1, 0), (5, 3), (40, 1), (16, 16), (20, 150), (130, 0)], ids=str
)
@each_isa()
def test_windows(isa: Isa, window: Window) -> None:
    """Pages that no token of a row sees are NaN, and the bits are those of one token alone."""
    for rows in BATCHES.values():
        check(isa, (9, 3, 64), rows, window)
    check_alone(isa, (9, 3, 64), window)


TEXTS: Rows = [(i, 0, length) for i, length in enumerate(LENGTHS)]


@pytest.mark.one_of(22)
@pytest.mark.parametrize("reach", [0, 5, 16, 40, 127, 1000])
@each_isa_and("shape", [(9, 3, 64), (2, 2, 64), (8, 1, 64)])
def test_windows_on_both_sides(isa: Isa, shape: tuple[int, int, int], reach: int) -> None:
    heads, kv_heads, head_dim = shape
    cache, q = Cache(kv_heads, head_dim, isa.kv_dtype, LENGTHS), queries(TEXTS, heads, head_dim)
    out = attend(isa, heads, cache, TEXTS, q, reach=reach)
    expected, bound = reference(heads, cache, TEXTS, q, ALL, reach=reach)
    assert (np.abs(out - expected) <= bound).all()
    first = 0
    for row in TEXTS:
        own = slice(first, first + row[2])
        alone = attend(isa, heads, cache, [row], q[own], reach=reach)
        assert alone.tobytes() == out[own].tobytes(), row
        first += row[2]


@pytest.mark.one_of(6)
@pytest.mark.parametrize("window", [(5, 3), (30, 130), (16, 0)], ids=str)
@each_isa()
def test_sinks_have_queries_of_their_own(isa: Isa, window: Window) -> None:
    """It is used for the whole KV split that a sink is in. Without sinks it is not read."""
    heads = 9
    cache = Cache(3, 64, isa.kv_dtype, LENGTHS)
    for rows in BATCHES.values():
        q = queries(rows, heads, 64)
        others = q[:, ::-1].copy() if window[1] else np.full_like(q, np.nan)
        out = attend(isa, heads, cache, rows, q, window=window, for_sinks=others)
        expected, bound = reference(heads, cache, rows, q, window, for_sinks=others)
        if not window[1]:
            expected, bound = reference(heads, cache, rows, q, window)
        assert (np.abs(out - expected) <= bound).all()
        same = attend(isa, heads, cache, rows, q, window=window, for_sinks=q)
        assert same.tobytes() == attend(isa, heads, cache, rows, q, window=window).tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("shape", MORE_SHAPES, ids=str)
@each_isa()
def test_more_shapes(isa: Isa, shape: tuple[int, int, int]) -> None:
    for rows in BATCHES.values():
        check(isa, shape, rows)
    check_alone(isa, shape)


@pytest.mark.one_of(4)
@each_isa_and("head_dim", SIZES)
def test_head_sizes(isa: Isa, head_dim: int) -> None:
    check(isa, (2, 1, head_dim), BATCHES["mixed"])
    check(isa, (2, 1, head_dim), BATCHES["longer"])


@pytest.mark.one_of(5)
@pytest.mark.parametrize("window", [ALL, (40, 1)], ids=str)
@pytest.mark.parametrize("cap", [None, 0.9])
@each_isa()
def test_caps_and_learned_sinks(isa: Isa, cap: float | None, window: Window) -> None:
    """Sinks below, among and far above the scores; a token alone gives the same bits."""
    cache = Cache(3, 64, isa.kv_dtype, LENGTHS)
    sinks = np.array([-500, -2, -1, 0, 0.5, 1, 2, 4, 300], np.float32)
    asked = {"window": window, "cap": cap, "sinks": sinks}
    for rows in BATCHES.values():
        q = queries(rows, 9, 64)
        out = attend(isa, 9, cache, rows, q, **asked)  # type: ignore[arg-type]
        expected, bound = reference(9, cache, rows, q, **asked)  # type: ignore[arg-type]
        assert (np.abs(out - expected) <= bound).all()
        assert np.abs(out.reshape(-1, 9, 64)[:, 8]).max() < 1e-30, "the sink has all weight"
    rows = [(4, 100, 2 * SPLIT_KEYS + 3)]
    q = queries(rows, 9, 64)
    out = attend(isa, 9, cache, rows, q, **asked)  # type: ignore[arg-type]
    for i in (0, 40, len(q) - 1):
        token = [(4, 100 + i, 101 + i)]
        alone = attend(isa, 9, cache, token, q[i : i + 1], **asked)  # type: ignore[arg-type]
        assert alone.tobytes() == out[i : i + 1].tobytes()


@pytest.mark.one_of(6)
@each_isa()
def test_a_cap_alone(isa: Isa) -> None:
    cache = Cache(3, 64, isa.kv_dtype, LENGTHS)
    for rows in BATCHES.values():
        q = 30 * queries(rows, 9, 64)
        out = attend(isa, 9, cache, rows, q, cap=50.0)
        expected, bound = reference(9, cache, rows, q, ALL, cap=50.0)
        assert (np.abs(out - expected) <= bound).all()
        assert (np.abs(out - reference(9, cache, rows, q, ALL)[0]) > bound).any() or len(q) == 1


@each_isa()
def test_sharp_scores(isa: Isa) -> None:
    """Scores thousands apart: the softmax is one token's value, and nothing overflows."""
    cache = Cache(3, 64, isa.kv_dtype, (40,))
    keys, values = (np.repeat(part[21], 3, axis=0).reshape(1, -1) for part in cache.sequence(0, 40))
    q = (1000 * keys).astype(np.float32)
    out = attend(isa, 9, cache, [(0, 39, 40)], q)
    assert np.abs(out - values).max() <= 1e-6
    assert np.isfinite(attend(isa, 9, cache, [(0, 39, 40)], -q)).all()
