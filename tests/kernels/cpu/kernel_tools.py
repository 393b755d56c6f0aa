"""Builds kernels, calls them on NumPy arrays, and reads what integer kernels are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from os import devnull
from pathlib import Path
from typing import Any

import amx_tools
import arm_tools
import kept
import numpy as np
import numpy.typing as npt
import pytest
import tvm
import tvm_ffi_orcjit
from pairs import every_other

from mlc_llm.backends.cpu.codegen import needless
from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import AVX_VNNI, ISAS, VNNI_BF16, Isa
from mlc_llm.backends.cpu.packing import Packed
from mlc_llm.backends.cpu.target import missing_features, target_for
from mlc_llm.backends.cpu.threads import configure_threads
from mlc_llm.kernels.cpu import activation, quant_blocks
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS
from mlc_llm.kernels.row_kinds import KINDS
from mlc_llm.quantization.block_format import Grouped

Array = npt.NDArray[Any]
HALF_ULP = 2.0**-24
"""Largest relative error of one rounded float32 operation."""


def each_isa(
    *,
    with_amx: bool = False,
    with_avx_vnni: bool = False,
    where: Callable[[Isa], bool] = lambda isa: True,
) -> Callable[[Any], Any]:
    """Parametrises `isa`. Kernels that this machine cannot run are emulated, which is slow, or
    skipped by name.

    with_amx: only those with AMX tiles. Otherwise tests of these and of `vnni-bf16` are slow tests:
    their kernels are those of other sets, except for fixed-point weights, the attention of fast
    tokens and their rows of 16-bit floats, which have tests of their own. So are tests of
    `avx-vnni`, unless with_avx_vnni: only its products are not those of `avx2`.
    where: only those for which it is true.
    """
    own = (AVX_VNNI,) if with_avx_vnni else ()
    chosen = [isa for isa in ISAS.values() if (isa.amx_tiles or not with_amx) and where(isa)]
    return pytest.mark.parametrize("isa", _parameters(chosen, with_amx, own))


def each_isa_and(name: str, values: Sequence[object]) -> Callable[[Any], Any]:
    """Parametrises `isa` and `name` as `every_other` does."""
    return pytest.mark.parametrize(
        ("isa", name), every_other(_parameters(ISAS.values(), with_amx=False), values)
    )


def _parameters(isas: Iterable[Isa], with_amx: bool, own: Sequence[Isa] = ()) -> list[Any]:
    return [
        pytest.param(isa, id=isa.name, marks=marks_of(isa, with_amx=with_amx, own=own))
        for isa in isas
    ]


def marks_of(isa: Isa, *, with_amx: bool, own: Sequence[Isa] = ()) -> list[pytest.MarkDecorator]:
    """Those of a test of these kernels; with_amx: see `each_isa`. own: sets whose kernels of this
    kind are those of no other set."""
    lacking = ", ".join(missing_features(isa.name))
    if not lacking:
        is_other = isa.amx_tiles or isa.bf16 or (isa is AVX_VNNI and isa not in own)
        return [pytest.mark.slow] if is_other and not with_amx else []
    missing = _missing_to_emulate(isa)
    reason = f"no {lacking} here, and no {missing}"
    return [pytest.mark.skipif(bool(missing), reason=reason), pytest.mark.slow]


def _missing_to_emulate(isa: Isa) -> str:
    """What running these kernels on another machine lacks; empty if nothing."""
    if isa in arm_tools.ARM:
        return arm_tools.missing_programs()
    return amx_tools.missing() if amx_tools.is_amx(isa) else "emulator for it"


def accumulated(operations: int) -> float:
    """Bound of the relative error of a chain of float32 operations (Higham's gamma)."""
    return operations * HALF_ULP / (1 - operations * HALF_ULP)


Maker = Callable[..., tvm.tirx.PrimFunc]


@cache
def build(isa: Isa, make: Maker, *args: object, **options: object) -> Callable[..., None]:
    """The compiled kernel `make(*args, **options)` on NumPy arrays: arrays that it changed are
    changed in place. It is not compiled where an earlier run has kept one of the same text."""
    func = make(*args, **options)
    if missing_features(isa.name):
        if not amx_tools.is_amx(isa):
            return arm_tools.emulated(func, isa)
        func, isa = amx_tools.emulated(func), VNNI_BF16
    configure_threads()
    func = func.with_attr("global_symbol", "k")
    content = (func.script(show_meta=True), str(target_for(isa)), tvm.__version__, needless(isa))
    path = kept.folder("kernels") / f"{kept.digest(*content)}.o"
    kernel = _linked(kept.entry(path, lambda new: _compile(new, func, isa)))

    def call(*arrays: Array) -> None:
        tensors = [tvm.runtime.tensor(np.ascontiguousarray(a)) for a in arrays]
        kernel(*tensors)
        for array, tensor in zip(arrays, tensors, strict=True):
            array[...] = tensor.numpy()

    return call


def _compile(path: Path, func: tvm.tirx.PrimFunc, isa: Isa) -> None:
    with tvm.transform.PassContext(disabled_pass=list(needless(isa))):  # as libraries are compiled
        module = tvm.tirx.build(func, target=target_for(isa))
    module.write_to_file(str(path))


@cache
def _session() -> tvm_ffi_orcjit.ExecutionSession:
    return tvm_ffi_orcjit.ExecutionSession(orc_rt=None)


def _linked(path: Path) -> Any:
    """The function `k` of an object file, linked as the runtime links libraries."""
    return _session().load_module(str(path), cxx=devnull)["k"]


def prepare(
    isa: Isa,
    fmt: WeightFormat,
    x: Array,
    kind: str = "plain",
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    eps: float = 0.0,
) -> list[Array]:
    """Arguments of `matmul` made from x by the activation kernels."""
    m, k = len(x), x.shape[1] // (2 if KINDS[kind].is_gated else 1)
    given = [x, x if weight is None else weight, *([] if bias is None else [bias])]
    if not isa.integer or fmt.is_float:
        y = np.full((m, k), np.nan, np.float32)
        build(isa, activation.floats, kind, k, eps)(*given, y)
        return [y]
    if fmt.is_fixed_point:
        y = np.full((m, quant_blocks.row_width(k)), -1, np.int32)
        build(isa, quant_blocks.quantize_blocks, kind, k, isa, eps)(*given, y)
        return [y]
    y = np.full((m, k // fmt.group, activation.quantized_width(fmt.group)), -1, np.int32)
    build(isa, activation.quantize, kind, k, fmt.group, isa, eps)(*given, y)
    return [y]


def parts(quantised: Array) -> tuple[Array, Array, Array]:
    """Words [m, groups, group/2], scales float32 [m, groups] and sums of quantised rows."""
    words, described = np.split(quantised, [-6], axis=2)
    return np.ascontiguousarray(words), _floats(described[..., 0]), described[..., 1]


def high_parts(quantised: Array) -> tuple[Array, Array, Array]:
    """High bytes int8 [m, groups, group] (in the order of the words), their scales and sums."""
    words, described = np.split(quantised, [-6], axis=2)
    high = np.ascontiguousarray(words[..., : words.shape[2] // 2]).view(np.int8)
    return high, _floats(described[..., 3]), described[..., 4]


def scaled_sums(quantised: Array) -> tuple[Array, Array]:
    """scale * sum as the activations say it, of all 16 bits and of the high bytes."""
    return _floats(quantised[..., -4]), _floats(quantised[..., -1])


def _floats(words: Array) -> Array:
    return np.ascontiguousarray(words).view(np.float32)


def integers(isa: Isa, words: Array) -> Array:
    """The 16-bit values int64 [m, groups, group] of packed activations, as `dot.py` lays them."""
    m, groups, count = words.shape
    quads = count // 2  # words a plane: group / 4
    if isa.sums == 2:
        octets = words.view(np.int8).reshape(m, groups, 2, quads, 4).astype(np.int64)
        values = 256 * octets[:, :, 0] + octets[:, :, 1]  # [m, groups, quads, byte]
        return values.transpose(0, 1, 3, 2).reshape(m, groups, -1)
    pairs = words.view(np.int16).reshape(m, groups, 2, quads, 2).astype(np.int64)
    # plane p holds bytes p and p + 2
    return pairs.transpose(0, 1, 4, 2, 3).reshape(m, groups, -1)


def grouped(fmt: WeightFormat, q: Array, scale: Array, minimum: Array | None = None) -> Grouped:
    """Weights of a format. Where scales have units, they become the nearest ones that do."""
    bits, low = fmt.bits, minimum if fmt.has_minimum else None
    if fmt.span == 1:
        return Grouped(q, bits, fmt.group, scale, low, fmt.offset, half=True)  # type: ignore[arg-type]
    scale, unit = _in_units(scale, fmt.span)
    low, low_unit = (None, None) if low is None else _in_units(low, fmt.span)
    found = (scale, low, fmt.offset, False, unit, low_unit)
    return Grouped(q, bits, fmt.group, *found)  # type: ignore[arg-type]


def _in_units(scale: Array, span: int) -> tuple[Array, Array]:
    """Scales that are whole numbers of units, and the units of all spans."""
    spans = scale.reshape(len(scale), -1, span)
    unit = (np.abs(spans).max(axis=2) / 100).astype(np.float16).astype(np.float32)
    wide = np.repeat(unit, span, axis=1)
    whole = np.rint(scale / wide) * wide
    return whole.astype(np.float32), unit


def row_counts(isa: Isa) -> tuple[int, ...]:
    """Numbers of rows that take every way through a product."""
    return (1, 2, 3, 5, 9, 12, 16, 17, 40) if isa.amx_tiles else (1, 2, 3, 5, 9)


def dequantised(isa: Isa, prepared: list[Array], k: int = 0) -> Array:
    """float64 [m, k]: the numbers that the product is really taken of. k: columns, for rows with
    quant blocks."""
    if prepared[0].dtype == np.float32:
        return prepared[0].astype(np.float64)
    if prepared[0].ndim == 2:
        return block_integers(prepared[0], k) * _wide(block_scales(prepared[0], k), k)
    words, scale, _ = parts(prepared[0])
    values = integers(isa, words) * scale.astype(np.float64)[..., None]
    return values.reshape(len(words), -1)


def steps(fmt: WeightFormat, prepared: list[Array], k: int) -> Array:
    """float64 [m, k]: what a number was rounded to a multiple of; 0 where it was not rounded."""
    if prepared[0].dtype == np.float32:
        return 0 * prepared[0].astype(np.float64)
    if prepared[0].ndim == 2:
        return _wide(block_scales(prepared[0], k), k)
    return np.repeat(parts(prepared[0])[1], fmt.group, axis=1).astype(np.float64)


def block_integers(rows: Array, k: int) -> Array:
    """The 16-bit values int64 [m, k] of rows with quant blocks."""
    planes = np.ascontiguousarray(rows[:, : k // 2]).view(np.int8).astype(np.int64)
    octets = planes.reshape(len(rows), 2, k // quant_blocks.GROUP, quant_blocks.QUADS, 4)
    values = 256 * octets[:, 0] + octets[:, 1]  # [m, groups, quads, byte]
    return values.transpose(0, 1, 3, 2).reshape(len(rows), k)


def block_scales(rows: Array, k: int) -> Array:
    """float32 [m, quant blocks]."""
    start = quant_blocks.scales_start(k)
    return _floats(rows[:, start : start + quant_blocks.quant_blocks(k)])


def _wide(scales: Array, k: int) -> Array:
    """The scale of each quant block, repeated for each of its columns."""
    width = quant_blocks.GROUP * quant_blocks.BLOCK_GROUPS
    return np.repeat(scales.astype(np.float64), width, axis=1)[:, :k]


def fixed_values(packed: Packed, q: Array) -> Array:
    """float64 [n, k]: what a packed fixed-point matrix of the values q stands for."""
    fmt, (n, k) = packed.format, q.shape
    groups = packed.tensor[:, : k // fmt.group, fmt.words * 32 :]
    integers = np.ascontiguousarray(groups).view(np.int16).astype(np.float64)
    # [blocks, groups, scales and minima, 32]
    parts = integers.reshape(*groups.shape[:2], -1, 32).transpose(2, 0, 3, 1)
    wide = np.repeat(parts.reshape(len(parts), -1, k // fmt.group), fmt.group, axis=2)[:, :n]
    units = np.ascontiguousarray(packed.tensor[:, -1, :32]).view(np.float32).reshape(-1, 1)[:n]
    values = wide[0] * (q.astype(np.float64) - fmt.offset) + (wide[1] if fmt.has_minimum else 0)
    assert np.abs(values).max() <= 32639, "more than two signed bytes hold"
    return values * units.astype(np.float64)


def rows_alone(run: Callable[[Array], list[Array]], x: Array) -> None:
    """AssertionError unless each row of run(x) has the very bits of that row run by itself."""
    together = run(x)
    for i in range(len(x)):
        for whole, single in zip(together, run(x[i : i + 1]), strict=True):
            assert whole[i].tobytes() == single[0].tobytes(), f"row {i} of {len(x)} differs"


def rounded_rows(y: Array, m: int, k: int) -> Array:
    """float64 [m, k] of m fast rows as `bf16.py` prepares them."""
    tiles = -(-m // TILE_ROWS)
    words = y.reshape(-1)[: tiles * TILE_ROWS * k // 2].view(np.uint32)
    words = words.reshape(tiles, k // 32, TILE_ROWS, 16).transpose(0, 2, 1, 3)
    pairs = np.stack([words << 16, words & 0xFFFF0000], axis=3).view(np.float32)
    return pairs.reshape(-1, k)[:m].astype(np.float64)
