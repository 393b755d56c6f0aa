"""Exact products of many rows with fixed-point weights, on tiles of bytes.

Weights become two bytes, as activations are: four products of tiles, whose sums of bytes count
65536, 256 (two of them) and 1.
"""

from __future__ import annotations

from typing import Any

from tvm.script import tirx as T

from mlc_llm.backends.cpu.formats import BLOCK, WeightFormat
from mlc_llm.kernels.cpu import amx
from mlc_llm.kernels.cpu.scales import units_at
from mlc_llm.kernels.cpu.sections import QUADS, SECTION, scales_start, sections, sections_width
from mlc_llm.kernels.cpu.tile_pipeline import Arithmetic, L, first_row, put, tiled_rows
from mlc_llm.kernels.cpu.vectors import fsplat, lanes_at, splat
from mlc_llm.kernels.cpu.weight_tiles import fill_word

HALF = 8
"""Lanes of 64-bit sums."""


def section_sum(f: Any, exact: Any, units: Any, scale: Any) -> Any:
    """The sums f plus a section's; exact: float64, a whole number; scale: bits of float32."""
    x_scale = splat(T.reinterpret(scale, dtype="float32"), HALF)
    return f + T.cast(exact, f"float32x{HALF}") * (units * x_scale)


def exact_rows(n: int, k: int, fmt: WeightFormat, accumulate: bool) -> Any:
    """Statements for all m rows: an inline function of (X, W, Y, m); X as `sections.py` says."""
    return tiled_rows(n, fmt, _bytes(k, fmt, accumulate))


def _bytes(k: int, fmt: WeightFormat, accumulate: bool) -> Arithmetic:
    """A step takes the high and the low bytes of 64 columns of 16 rows and 16 weights."""
    return Arithmetic(
        groups=k // fmt.group,
        section=SECTION,
        step=2,
        tiles=1,
        vectors=1,
        sums=3,
        dtype="int32",
        stride=sections_width(k),
        multiply=lambda x, w: amx.multiply(amx.SUMS + x + w, amx.X_TILES + x, amx.W_TILES + w),
        row=lambda m, unit, x: first_row(m, unit),
        column=lambda s, t, x: x * (k // 4) + (s * SECTION + 2 * t) * QUADS,
        fill=fill_word(k, fmt),
        finish_row=_finish_row(k, accumulate),
    )


def _finish_row(k: int, accumulate: bool) -> Any:
    """`Arithmetic.finish_row`, of 16 rows and 16 weights."""
    S = sections(k)

    def exact(C: Any, r: Any, h: Any) -> Any:
        planes = [T.cast(C[p, r, lanes_at(h * HALF, HALF)], f"float64x{HALF}") for p in range(3)]
        high, middle = (splat(T.float64(factor), HALF) for factor in (65536, 256))
        return planes[0] * high + (planes[1] * middle + planes[2])

    def added(
        X: Any, W: Any, known: Any, total: Any, at: Any, section: Any, row: Any, h: Any
    ) -> Any:
        zero = fsplat(0.0, HALF)
        return section_sum(
            T.Select(section == 0, zero, known) if S > 1 else zero,
            total,
            units_at(W, at[0], at[1] * L + h * HALF, HALF),
            X[row, scales_start(k) + section],
        )

    @T.inline
    def finish_row(X, W, Y, C, F, block, vector, section, m, unit, u, r):
        if section % S < S - 1:
            for h in T.unroll(2):
                F[u, r, 0, lanes_at(h * HALF, HALF)] = added(
                    *(X, W, F[u, r, 0, lanes_at(h * HALF, HALF)], exact(C, r, h)),
                    *((block, vector), section, first_row(m, unit) + r, h),
                )
        elif first_row(m, unit) + r >= unit * L:
            for h in T.unroll(2):
                put(
                    *(Y, first_row(m, unit) + r, block * BLOCK + vector * L + h * HALF),
                    added(
                        *(X, W, F[u, r, 0, lanes_at(h * HALF, HALF)], exact(C, r, h)),
                        *((block, vector), section, first_row(m, unit) + r, h),
                    ),
                    *(HALF, accumulate),
                )

    return finish_row
