"""Rows of a matrix that count with all planes where the others have one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa, grouped, prepare
from test_matmul import activations, columns

from mlc_llm.backends.cpu.formats import WeightFormat, format_of_kind
from mlc_llm.backends.cpu.isa import AMX, AVX2, VNNI, Isa
from mlc_llm.backends.cpu.ops import CpuOps
from mlc_llm.backends.cpu.packing import pack
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.integer_matmul import column_parts
from mlc_llm.kernels.cpu.matmul import matmul
from mlc_llm.kernels.cpu.unpacked_matmul import LEAST_ROWS
from mlc_llm.models.merged import MergedLinear, Part

N, EXACT, EPS = 224, range(64, 160), 1e-5
COUNTS = (1, 2, 7, LEAST_ROWS + 3)
"""Few rows, and many."""
ONE_PLANE = replace(VNNI, one_plane=True)


def packed_weights(fmt: WeightFormat) -> Array:
    rng, k = np.random.default_rng(3), columns(fmt)
    q = rng.integers(0, 2**fmt.bits, (N, k), dtype=np.uint8)
    scale, minimum = rng.standard_normal((2, N, k // fmt.group)).astype(np.float16)
    values = grouped(fmt, q, scale.astype(np.float32), minimum.astype(np.float32))
    return np.asarray(pack(values, fmt).tensor)


@pytest.mark.one_of(3)
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q6_K"])
@each_isa(where=lambda isa: isa.sums == 2, with_amx=True)
def test_each_column_has_the_bits_of_its_own_precision(isa: Isa, kind: str) -> None:
    fmt, one_plane = format_of_kind(kind, half=isa.half), replace(isa, one_plane=True)
    k, packed = columns(fmt), packed_weights(fmt)
    shape = N, k, fmt
    exact = build(isa, matmul, *shape, isa, accumulate=True)
    coarse = build(isa, matmul, *shape, one_plane, accumulate=True)
    mixed = build(
        isa, matmul, *shape, one_plane, accumulate=True, exact=EXACT, source=Source("plain", EPS)
    )
    for m in COUNTS:
        x = activations(m, k)
        (quantised,) = prepare(isa, fmt, x)
        y = np.ones((3, m, N), np.float32)
        exact(quantised, packed, y[0])
        coarse(quantised, packed, y[1])
        mixed(x, x, np.zeros_like(quantised), packed, y[2])
        expected = np.where([column in EXACT for column in range(N)], y[0], y[1])
        assert y[2].tobytes() == expected.tobytes(), f"{m} rows"
        assert (y[0] != y[1]).any(axis=0).all()


@pytest.mark.parametrize(
    ("exact", "parts"),
    [
        (range(0), [(0, 8, 1)]),
        (range(96, 256), [(0, 3, 1), (3, 8, 2)]),
        (range(70, 150), [(0, 2, 1), (2, 5, 2), (5, 8, 1)]),
        (range(64), [(0, 2, 2), (2, 8, 1)]),
        (range(256), [(0, 8, 2)]),
        (range(32, 128), [(0, 8, 2)]),
        (range(64, 96), [(0, 8, 2)]),
    ],
)
def test_no_part_is_a_single_block(exact: range, parts: list[tuple[int, int, int]]) -> None:
    found = column_parts(8, ONE_PLANE, exact)
    assert [(blocks.start, blocks.stop, planes) for blocks, planes in found] == parts


@pytest.mark.parametrize("isa", [VNNI, AVX2, AMX])
def test_other_precisions_have_one_part(isa: Isa) -> None:
    assert column_parts(8, isa, range(64, 128)) == [(range(8), isa.planes)]


@pytest.mark.parametrize(
    ("kind", "role", "kept", "exact"),
    [
        ("Q4_0", "qkv", range(64, 128), range(64, 128)),
        ("Q4_0", "router", range(0), range(128)),
        ("BF16", "router", range(0), range(128)),
        ("BF16", "qkv", range(64, 128), range(0)),
        ("Q4_0", "mlp", range(0), range(0)),
    ],
)
def test_what_stays_exact(kind: str, role: str, kept: range, exact: range) -> None:
    """A router's scores decide which experts compute. Keys and values in bfloat16 do well."""
    matrix = CpuOps(ONE_PLANE).matrix(128, 64, kind, role, kept)
    assert (matrix.exact, matrix.is_exact) == (exact, len(exact) == 128)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ({"q": 128, "k": 64, "v": 64}, range(128, 256)),
        ({"q": 128, "k": 64, "v": 64, "gate": 128}, range(128, 256)),
        ({"q": 128, "k": 64}, range(128, 192)),
        ({"gate": 128, "up": 128}, range(0)),
    ],
)
def test_keys_and_values_of_decoders_are_kept(parts: dict[str, int], kept: range) -> None:
    name = "_".join(parts)
    for encoder, expected in ((None, kept), (object(), range(0))):
        spec: Any = SimpleNamespace(kinds={f"layers.0.qkv.{name}": "Q4_0"}, encoder=encoder)
        owner = Part()
        MergedLinear(owner, parts, 64, spec, "layers.0.qkv.", CpuOps(ONE_PLANE))
        assert getattr(owner, name).exact == expected


def test_matrices_that_are_not_joined() -> None:
    """Their types differ."""
    parts = {"q": 128, "k": 64, "v": 64}
    kinds = {f"layers.0.qkv.{part}": "Q4_0" for part in parts}
    owner, spec = Part(), cast(Any, SimpleNamespace(kinds=kinds, encoder=None))
    MergedLinear(owner, parts, 64, spec, "layers.0.qkv.", CpuOps(ONE_PLANE))
    assert [owner.q.exact, owner.k.exact, owner.v.exact] == [range(0), range(64), range(64)]
    assert owner.k.is_exact and not owner.q.is_exact
