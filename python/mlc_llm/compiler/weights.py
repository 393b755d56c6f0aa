"""Packs the weights of a model into the parameters of a model library.

The folder holds two files. `params.bin` has the tensors, each at a multiple of PARAMS_ALIGNMENT
bytes. `params.json` is {size, crc32, tensors: [{name, shape, dtype, offset}]}, with the tensors in
the same order, and with size and checksum of `params.bin`.
"""

from __future__ import annotations

import itertools
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.base import Backend, WeightLayout
from mlc_llm.errors import ModelFileError
from mlc_llm.library.metadata import (
    FIRST_ROWS,
    INDEX_FILE,
    PARAMS_ALIGNMENT,
    PARAMS_FILE,
    long_rope_param,
    long_rope_rows_param,
    rope_param,
    rope_rows_param,
    rope_scaling_param,
)
from mlc_llm.library.rope_rows import rope_rows
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.row_order import row_order
from mlc_llm.models.sources import Slice, Source
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.ggml_blocks import dequantize, unpack
from mlc_llm.record import record

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Rows: TypeAlias = Grouped | Floats
"""Some rows of a matrix."""
Indices = npt.NDArray[np.int64]


_ROWS_VALUES = 1 << 20
"""Values of a matrix that are packed at once."""


def pack_weights(
    plan: WeightPlan,
    backend: Backend,
    tensors: Mapping[str, Tensor],
    folder: Path,
    advance: Callable[[int], None],
) -> None:
    """Pack and write the parameters into `folder`, one at a time. Calls `advance(1)` after each.

    Raises ModelFileError if a tensor has values that are not finite.
    """
    entries: list[dict[str, object]] = []
    offset = checksum = 0
    with (folder / PARAMS_FILE).open("wb") as file:
        for one in _parameters(plan, backend, tensors):
            padding = b"\0" * (-offset % PARAMS_ALIGNMENT)
            offset += len(padding)
            entries.append(
                {"name": one.name, "shape": one.shape, "dtype": one.dtype, "offset": offset}
            )
            for part in itertools.chain([np.frombuffer(padding, np.uint8)], one.parts):
                data = np.ascontiguousarray(part).data
                file.write(data)
                checksum = zlib.crc32(data, checksum)
            offset += math.prod(one.shape) * np.dtype(one.dtype).itemsize
            assert file.tell() == offset, one.name
            advance(1)
    index = {"size": offset, "crc32": checksum, "tensors": entries}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def count_parameters(plan: WeightPlan) -> int:
    """How often `pack_weights` calls `advance`."""
    long = [rope for rope in plan.spec.ropes if rope.long_after]
    return len(plan.matrices) + len(plan.vectors) + 3 * len(plan.spec.ropes) + 2 * len(long)


def inverse_frequencies(rope: RopeSpec, factors: Floats | None) -> Floats:
    """float32 [dim/2], computed as in Transformers: theta^(-2i/dim) in float32, then scaled."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    powers = np.power(np.float32(rope.theta), exponents, dtype=np.float32)
    inverse: Floats = np.float32(1.0) / powers / np.float32(rope.linear)
    if factors is not None:
        inverse = inverse / factors
    return inverse


@record()
class _Parameter:
    name: str
    shape: tuple[int, ...]
    dtype: str
    parts: Iterable[Array]
    """One behind the other. Each is made when it is asked for: a whole matrix as float32 would be
    several times as large as in the file."""

    @classmethod
    def of(cls, name: str, values: Floats) -> _Parameter:
        return cls(name, values.shape, "float32", [values])


def _parameters(
    plan: WeightPlan, backend: Backend, tensors: Mapping[str, Tensor]
) -> Iterator[_Parameter]:
    for name, source in plan.vectors.items():
        values = _floats(tensors[source.tensor]).reshape(source.shape)
        yield _Parameter.of(name, values[row_order(source, len(values))])
    for prefix, sources in plan.matrices.items():
        layout = backend.layout(plan.spec.kinds[prefix])
        stack, columns = sources[0].shape[:-2], sources[0].width
        shape, dtype = layout.shape(sum(source.count for source in sources), columns)
        parts = _stack(layout, sources[0], tensors) if stack else _matrix(layout, sources, tensors)
        yield _Parameter(f"{prefix}.packed", (*stack, *shape), dtype, parts)
        for source in sources:  # else the whole file stays in memory beside the packed weights
            tensors[source.tensor].give_back()
    for i, rope in enumerate(plan.spec.ropes):
        scaling = np.array([rope.magnitude, rope.long_after], np.float32)
        yield _Parameter.of(rope_scaling_param(i), scaling)
        inverse = inverse_frequencies(rope, _rope_factors(rope.factors, tensors))
        yield _Parameter.of(rope_param(i), inverse)
        yield _Parameter.of(rope_rows_param(i), rope_rows(inverse, rope.magnitude, FIRST_ROWS))
        if rope.long_after:
            inverse = inverse_frequencies(rope, _rope_factors(rope.long_factors, tensors))
            yield _Parameter.of(long_rope_param(i), inverse)
            rows = rope_rows(inverse, rope.magnitude, FIRST_ROWS)
            yield _Parameter.of(long_rope_rows_param(i), rows)


def _rope_factors(
    factors: str | tuple[float, ...] | None, tensors: Mapping[str, Tensor]
) -> Floats | None:
    if isinstance(factors, str):
        return _floats(tensors[factors])
    return None if factors is None else np.array(factors, np.float32)


def _matrix(
    layout: WeightLayout, sources: tuple[Source, ...], tensors: Mapping[str, Tensor]
) -> Iterator[Array]:
    """The packed rows of joined matrices, a few at a time."""
    held: list[Rows] = []
    for source in sources:
        for rows in _rows(layout, source, tensors[source.tensor]):
            held.append(rows)
            if sum(map(_count, held)) % layout.row_block == 0:
                yield layout.pack(_joined(held))
                held = []
    if held:
        yield layout.pack(_joined(held))


def _stack(layout: WeightLayout, source: Source, tensors: Mapping[str, Tensor]) -> Iterator[Array]:
    """The packed matrix of each expert, one behind the other."""
    name, one = source.tensor, replace(source, shape=source.shape[1:])
    for i in range(source.shape[0]):
        yield from _matrix(layout, (one,), {name: tensors[name].matrix(i)})
        tensors[name].give_back()


def _rows(layout: WeightLayout, source: Source, tensor: Tensor) -> Iterator[Rows]:
    """The values of a matrix in the order for the kernels, so many rows at a time that whole row
    blocks come of them. Raises ModelFileError for values that are not finite."""
    count, columns = tensor.shape
    data, order = tensor.data.reshape(count, -1), row_order(source, count)
    step = max(_ROWS_VALUES // columns // layout.row_block, 1) * layout.row_block
    for start in range(0, len(order), step):
        here = order[start : start + step]
        is_run = bool((np.diff(here) == 1).all())
        some = data[here[0] : here[-1] + 1] if is_run else data[here]
        values = _values(layout, tensor, some.reshape(-1), (len(here), columns))
        yield values if source.columns is None else _cut(values, source.columns)


def _values(layout: WeightLayout, tensor: Tensor, data: Bytes, shape: tuple[int, int]) -> Rows:
    """The values of some rows of a matrix, from their bytes."""
    if layout.is_float:
        floats = dequantize(tensor.kind, data, shape)
        _check_finite(tensor.name, floats)
        return floats
    grouped = unpack(tensor.kind, data, shape)
    _check_finite(tensor.name, grouped.scale)
    if grouped.minimum is not None:
        _check_finite(tensor.name, grouped.minimum)
    return grouped


def _cut(rows: Rows, columns: Slice) -> Rows:
    """Some columns, which are whole groups."""
    here = slice(*columns)
    if not isinstance(rows, Grouped):
        return np.ascontiguousarray(rows[:, here])
    whole = rows.q.shape[1]

    def cut(values: Floats | None) -> Floats | None:
        if values is None:
            return None
        size = whole // values.shape[1]
        assert columns.start % size == 0 == columns.stop % size, "a group is cut"
        part = values[:, columns.start // size : columns.stop // size]
        return np.ascontiguousarray(part)

    scale = cut(rows.scale)
    assert scale is not None
    return replace(
        rows,
        q=np.ascontiguousarray(rows.q[:, here]),
        scale=scale,
        minimum=cut(rows.minimum),
        unit=cut(rows.unit),
        minimum_unit=cut(rows.minimum_unit),
    )


def _count(rows: Rows) -> int:
    return len(rows.q if isinstance(rows, Grouped) else rows)


def _joined(parts: list[Rows]) -> Rows:
    """Rows below each other."""
    if len(parts) == 1:
        return parts[0]
    grouped = [one for one in parts if isinstance(one, Grouped)]
    if not grouped:
        return np.concatenate([one for one in parts if not isinstance(one, Grouped)])
    return replace(
        grouped[0],
        q=np.concatenate([p.q for p in grouped]),
        scale=np.concatenate([p.scale for p in grouped]),
        minimum=_stacked([p.minimum for p in grouped]),
        half=all(p.half for p in grouped),
        unit=_stacked([p.unit for p in grouped]),
        minimum_unit=_stacked([p.minimum_unit for p in grouped]),
    )


def _stacked(parts: list[Floats | None]) -> Floats | None:
    """What all parts have or none has."""
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def _floats(tensor: Tensor) -> Floats:
    values = np.ascontiguousarray(dequantize(tensor.kind, tensor.data, tensor.shape))
    _check_finite(tensor.name, values)
    return values


def _check_finite(name: str, values: Floats) -> None:
    """Raise ModelFileError for NaN and infinity: a damaged file must not become a model."""
    if not np.isfinite(values).all():
        raise ModelFileError(f"tensor {name} holds NaN or infinite values: the file is damaged")
