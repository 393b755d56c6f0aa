"""Products that ask the memory for adapters: the results are those of products that do not."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from kernel_tools import Array, build, each_isa, prepare
from test_adapter_products import groups_of
from test_matmul import activations, columns, weights

from mlc_llm.backends.cpu.isa import VNNI, Isa
from mlc_llm.backends.cpu.target import target_for
from mlc_llm.kernels.cpu.adapter_asks import Factors
from mlc_llm.kernels.cpu.matmul import can_ask, has_fast_rows, matmul

KIND = "Q4_1"
"""Its products ask with every integer set of kernels."""
RANK = 8
RANKS = [3, RANK, 0]


def factors(m: int, k: int, rows: int, isa: Isa) -> list[Array]:
    """`down`, `up`, `ranks`, `slots` and `groups`: more adapters than row blocks, or none."""
    rng = np.random.default_rng(0)
    down = rng.standard_normal((3, 2, RANK, k)).astype(np.float16)
    up = rng.standard_normal((3, rows // 2, RANK, 2)).astype(np.float16)
    slots = np.array([(5 * t) % 4 - 1 for t in range(m)], np.int32)
    return [down, up, np.array(RANKS, np.int32), slots, groups_of(isa, slots)]


@pytest.mark.one_of(2)
@pytest.mark.parametrize("is_fast", [False, True])
@each_isa(where=lambda isa: can_ask(weights(KIND, isa).format, isa))
def test_same_bits(isa: Isa, is_fast: bool) -> None:
    packed = weights(KIND, isa)
    fmt, k, rows = packed.format, columns(packed.format), 96
    if is_fast and not has_fast_rows(fmt, isa, k):
        pytest.skip("these kernels have no fast rows")
    asks = Factors(k, (64, 6), "float16")
    options = {"accumulate": True, "fast": is_fast}
    plain = build(isa, matmul, rows, k, fmt, isa, **options)
    asking = build(isa, matmul, rows, k, fmt, isa, **options, asks=asks)
    for m in (1, 4, 9, 35, 70):
        given = [*prepare(isa, fmt, activations(m, k)), *packed.arguments()]
        given += [np.array([m // 2], np.int32)] if is_fast else []
        expected = np.random.default_rng(1).standard_normal((m, rows)).astype(np.float32)
        found = expected.copy()
        plain(*given, expected)
        asking(*given, *factors(m, k, 70, isa), found)
        assert found.tobytes() == expected.tobytes()


@pytest.mark.slow
def test_asks() -> None:
    """Each group of columns of a row block has instructions that ask."""
    fmt = weights(KIND, VNNI).format

    def asked(asks: Factors | None) -> int:
        kernel = matmul(96, 320, fmt, VNNI, accumulate=False, asks=asks)
        target = target_for(VNNI, "x86_64-linux-gnu")
        module = tvm.tirx.build(kernel.with_attr("global_symbol", "k"), target=target)
        return str(module.inspect_source("asm")).count("prefetch")

    assert asked(Factors(320, (96,), "float16")) >= asked(None) + 2
