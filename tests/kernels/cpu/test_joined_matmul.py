"""Products that quantise their input: every bit is that of a kernel for each of the two."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa, prepare
from test_matmul import activations, columns, weights

from mlc_llm.backends.cpu.formats import padded_rows
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.matmul import can_quantize, has_fast_rows, leaves_quantised, matmul
from mlc_llm.kernels.cpu.quantized_rows import MOST_PARTS
from mlc_llm.kernels.cpu.unpacked_matmul import LEAST_ROWS, least_rows
from mlc_llm.kernels.row_kinds import KINDS

ROWS, EPS = 70, 1e-5
COUNTS = (1, 2, 5, MOST_PARTS + 1, LEAST_ROWS + 3, 2 * LEAST_ROWS + 3)
"""Rows that are cut into parts, or are not; few, and many."""


def vectors(kind: str, k: int) -> dict[str, Array]:
    """What rows of this kind read beside X."""
    rng = np.random.default_rng(2)
    found = rng.standard_normal((2, k)).astype(np.float32)
    return dict(zip(("weight", "bias"), found[: KINDS[kind].vectors], strict=False))


def rows_of(kind: str, m: int, k: int) -> Array:
    return activations(m, 2 * k if KINDS[kind].is_gated else k)


@pytest.mark.one_of(24)
@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", ["plain", "norm", "layer_norm", "silu", "silu_biased"])
@pytest.mark.parametrize("of", ["Q4_0", "Q4_1", "Q6_K"])
@each_isa(with_avx_vnni=True, where=lambda isa: can_quantize(weights("Q4_0", isa).format, isa))
def test_same_bits(isa: Isa, of: str, kind: str, fast: bool) -> None:
    packed = weights(of, isa)
    fmt, k, n = packed.format, columns(packed.format), padded_rows(ROWS)
    if fast and not has_fast_rows(fmt, isa, k):
        pytest.skip("these kernels have no fast rows")
    options = {"accumulate": True, "fast": fast}
    apart = build(isa, matmul, n, k, fmt, isa, **options)
    joined = build(isa, matmul, n, k, fmt, isa, **options, source=Source(kind, EPS))
    given = vectors(kind, k)
    for m in COUNTS:
        x = rows_of(kind, m, k)
        (quantised,) = prepare(isa, fmt, x, kind, **given, eps=EPS)
        rest = [*packed.arguments(), *([np.array([m // 2], np.int32)] if fast else [])]
        expected = np.random.default_rng(1).standard_normal((m, n)).astype(np.float32)
        found, made = expected.copy(), np.full_like(quantised, -1)
        apart(quantised, *rest, expected)
        read = [given.get("weight", x), *([given["bias"]] if "bias" in given else [])]
        joined(x, *read, made, *rest, found)
        for rows in (slice(m // 2), slice(m // 2, m)) if fast else (slice(m),):
            if leaves_quantised(isa) or len(made[rows]) < least_rows(isa):
                assert made[rows].tobytes() == quantised[rows].tobytes(), f"{m} rows"
        assert found.tobytes() == expected.tobytes(), f"{m} rows"
        assert np.isfinite(found).all()


@pytest.mark.parametrize("n", [32, 64, 128])
@each_isa(where=lambda isa: isa.integer)
def test_no_loop_of_one_task_is_in_a_launch(isa: Isa, n: int) -> None:
    """TVM makes no loop of it, so all threads would do it, each into the others' sums."""
    fmt = weights("Q8_0", isa).format
    options = {"accumulate": False, "fast": has_fast_rows(fmt, isa, columns(fmt))}
    kernel = matmul(n, columns(fmt), fmt, isa, **options, source=Source("norm", EPS))
    lines = kernel.script().splitlines()
    launches = [i for i, line in enumerate(lines) if "pragma_parallel_launch_point" in line]
    for start in launches:
        deeper = " " * (_indent(lines[start]) + 1)
        inside = takewhile(lambda line, deeper=deeper: line.startswith(deeper), lines[start + 1 :])
        assert not any("T.parallel(1)" in line for line in inside)
    assert bool(launches) == (n > 32 or not leaves_quantised(isa))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


@pytest.mark.parametrize("of", ["F16", "Q4_0"])
@each_isa(where=lambda isa: not can_quantize(weights("Q4_0", isa).format, isa))
def test_others_read_what_is_made_before(isa: Isa, of: str) -> None:
    fmt = weights(of, isa).format
    with pytest.raises(AssertionError):
        matmul(96, 160, fmt, isa, accumulate=False, source=Source("plain", 0.0))
