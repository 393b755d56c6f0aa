"""Y[m, n] (+)= X[m, k] W[n, k]^T over packed weights: which kernel computes it.

                        integer weights            fixed-point weights     float16, float32 weights
integers on vectors     `integer_matmul.py`        -                       `float_matmul.py`
AMX                     `integer_matmul.py`        `fixed_point.py`        `float_matmul.py`
AMX, fast               `amx_fast_integer.py`      `amx_fast.py`           `amx_fast_float.py`
AMX, split              `amx_split.py`             -                       `amx_split.py`
AVX-512 BF16, fast      `integer_matmul.py`        -                       `pair_matmul.py`
portable                `float_matmul.py`          -                       `float_matmul.py`

X  activations, prepared as the kernel reads them: `activation.py`, `quant_blocks.py`, `bf16.py`,
   `split.py`
W  packed weights (`backends/cpu/formats.py`)
Y  float32 [m, n], the result

All of them add up a row in the same order, whatever the number of rows. So a row's result never
depends on what else is in the batch.
"""

from __future__ import annotations

from functools import cache

import tvm

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.adapter_asks import Factors
from mlc_llm.kernels.cpu.amx_fast import fast_fixed_point_matmul
from mlc_llm.kernels.cpu.amx_fast_float import fast_float_matmul, has_fast_floats
from mlc_llm.kernels.cpu.amx_fast_integer import fast_integer_matmul
from mlc_llm.kernels.cpu.amx_split import can_split, split_matmul
from mlc_llm.kernels.cpu.fixed_point import fixed_point_matmul
from mlc_llm.kernels.cpu.float_matmul import float_matmul
from mlc_llm.kernels.cpu.integer_matmul import integer_matmul
from mlc_llm.kernels.cpu.pair_matmul import has_pairs, pair_matmul
from mlc_llm.kernels.cpu.unpacked_matmul import unpacks


def has_fast_rows(fmt: WeightFormat, isa: Isa, k: int) -> bool:
    """Whether there is a faster product for matrices of k columns: in bfloat16 on AMX tiles or in
    pairs, or of the high plane alone. `one_plane` kernels compute all rows so."""
    if isa.amx_tiles:
        return has_fast_floats(fmt, isa, k) or (isa.fast and not fmt.reads_floats)
    if isa.one_plane:
        return False
    return has_pairs(fmt, isa, k) if fmt.reads_floats else isa.sums == 2


def can_quantize(fmt: WeightFormat, isa: Isa, *, fast: bool = False) -> bool:
    """Whether the product can quantise its input itself."""
    on_tiles = fmt.is_fixed_point or (fast and isa.amx_tiles)
    return isa.integer and not (fmt.is_float or on_tiles or fmt.reads_floats)


def leaves_quantised(isa: Isa) -> bool:
    """Whether a product that quantises its input leaves it for other products to read."""
    return not unpacks(isa)


def has_one_plane(fmt: WeightFormat) -> bool:
    """Whether `one_plane` kernels count this format's products with one plane."""
    return not (fmt.reads_floats or fmt.is_fixed_point)


def can_ask(fmt: WeightFormat, isa: Isa) -> bool:
    """Whether the product can ask the memory for the factors of adapters. With AMX nothing is
    gained: reading takes as long beside products as after them."""
    return can_quantize(fmt, isa) and not isa.amx_tiles


@cache
def matmul(
    n: int,
    k: int,
    fmt: WeightFormat,
    isa: Isa,
    *,
    accumulate: bool,
    fast: bool = False,
    split: bool = False,
    exact: range = range(0),
    asks: Factors | None = None,
    source: Source | None = None,
) -> tvm.tirx.PrimFunc:
    """Kernel for a weight matrix of n (a multiple of 32) rows and k columns.

    Arguments: X, W and Y as above.
    source (where `can_quantize`): in the place of X come the arguments of `activation.quantize`, of
    rows of this kind. The last of them is X, which the kernel makes first (`leaves_quantised`).
    accumulate: add to Y in place (the residual stream) instead of overwriting it.
    fast (where `has_fast_rows`): int32 [1] comes before Y, the number of fast rows. These are the
    first ones; they count with one plane, or all is bfloat16. Every other row is computed exactly.
    exact: rows of the matrix that count with all planes in `one_plane` too, where planes count.
    split (where `can_split`): every number is taken as two of bfloat16, for rows of whole texts.
    asks (where `can_ask`): `down`, `up`, `ranks`, `slots` and `groups` of adapters come before Y,
    and the memory is asked for them (`adapter_asks.py`).
    """
    assert has_fast_rows(fmt, isa, k) or not fast
    assert can_split(fmt, isa, k) or not split
    assert can_ask(fmt, isa) or asks is None
    assert can_quantize(fmt, isa, fast=fast) or source is None
    if split:
        return split_matmul(n, k, fmt, accumulate=accumulate)
    if fmt.is_float:
        return _of_floats(n, k, fmt, isa, accumulate=accumulate, fast=fast)
    if fmt.is_fixed_point:
        make = fast_fixed_point_matmul if fast else fixed_point_matmul
        return make(n, k, fmt, isa, accumulate=accumulate)
    if fmt.reads_floats or not isa.integer:
        return float_matmul(n, k, fmt, isa, accumulate)
    if fast and isa.amx_tiles:
        return fast_integer_matmul(n, k, fmt, isa, accumulate=accumulate)
    return integer_matmul(
        n, k, fmt, isa, accumulate, fast=fast, exact=exact, asks=asks, source=source
    )


def _of_floats(
    n: int, k: int, fmt: WeightFormat, isa: Isa, *, accumulate: bool, fast: bool
) -> tvm.tirx.PrimFunc:
    """The kernel where the weights are plain floats."""
    if fast and isa.amx_tiles:
        return fast_float_matmul(n, k, fmt, isa, accumulate=accumulate)
    if has_pairs(fmt, isa, k) and (fast or isa.one_plane):
        return pair_matmul(n, k, fmt, isa, accumulate, fast=fast)
    return float_matmul(n, k, fmt, isa, accumulate)
