"""Packs the weights of a model into the parameters of a model library.

The folder holds two files. `params.bin` has the tensors, each at a multiple of PARAMS_ALIGNMENT
bytes. `params.json` is {size, crc32, tensors: [{name, shape, dtype, offset}]}, with the tensors in
the same order, and with size and checksum of `params.bin`.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.base import Backend, WeightLayout
from mlc_llm.errors import ModelFileError
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_ALIGNMENT, PARAMS_FILE, rope_param
from mlc_llm.loader.tensor import Tensor
from mlc_llm.models.spec import RopeSpec
from mlc_llm.models.weight_plan import Source, WeightPlan
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.quantization.ggml_blocks import dequantize, unpack

Array = npt.NDArray[np.generic]
Floats = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]


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
        for name, array in _parameters(plan, backend, tensors):
            padding = b"\0" * (-offset % PARAMS_ALIGNMENT)
            offset += len(padding)
            entries.append(
                {"name": name, "shape": array.shape, "dtype": str(array.dtype), "offset": offset}
            )
            for part in (padding, np.ascontiguousarray(array).data):
                file.write(part)
                checksum = zlib.crc32(part, checksum)
            offset += array.nbytes
            advance(1)
    index = {"size": offset, "crc32": checksum, "tensors": entries}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def count_parameters(plan: WeightPlan) -> int:
    """How often `pack_weights` calls `advance`."""
    return len(plan.matrices) + len(plan.vectors) + len(plan.spec.ropes)


def inverse_frequencies(rope: RopeSpec, factors: Floats | None) -> Floats:
    """float32 [dim/2], computed as in Transformers: theta^(-2i/dim) in float32, then scaled."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    powers = np.power(np.float32(rope.theta), exponents, dtype=np.float32)
    inverse: Floats = np.float32(1.0) / powers / np.float32(rope.linear)
    if factors is not None:
        inverse = inverse / factors
    return inverse


def _parameters(
    plan: WeightPlan, backend: Backend, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, Array]]:
    for name, source in plan.vectors.items():
        values = _floats(tensors[source.tensor])
        yield name, values[_row_order(source, len(values))] if source.rope_heads else values
    for prefix, sources in plan.matrices.items():
        layout = backend.layout(plan.spec.kinds[prefix])
        if len(sources[0].shape) == 3:
            packed = _stack(layout, sources[0], tensors)
        else:
            packed = _matrix(layout, sources, tensors)
        for source in sources:  # else the whole file stays in memory beside the packed weights
            tensors[source.tensor].give_back()
        yield f"{prefix}.packed", packed
    for i, rope in enumerate(plan.spec.ropes):
        factors = _rope_factors(rope, tensors)
        yield rope_param(i), inverse_frequencies(rope, factors)


def _rope_factors(rope: RopeSpec, tensors: Mapping[str, Tensor]) -> Floats | None:
    if isinstance(rope.factors, str):
        return _floats(tensors[rope.factors])
    return None if rope.factors is None else np.array(rope.factors, np.float32)


def _matrix(
    layout: WeightLayout, sources: tuple[Source, ...], tensors: Mapping[str, Tensor]
) -> Array:
    orders = [_row_order(s, tensors[s.tensor].shape[0]) for s in sources]
    if layout.is_float:
        floats = [_floats(tensors[s.tensor])[o] for s, o in zip(sources, orders, strict=True)]
        return layout.pack(np.concatenate(floats))
    parts = []
    for source, order in zip(sources, orders, strict=True):
        tensor = tensors[source.tensor]
        rows, columns = tensor.shape
        grouped = unpack(tensor.kind, tensor.data, (rows, columns))
        _check_finite(source.tensor, grouped.scale)
        if grouped.minimum is not None:
            _check_finite(source.tensor, grouped.minimum)
        parts.append(_reordered(grouped, order))
    return layout.pack(parts[0] if len(parts) == 1 else _joined(parts))


def _stack(layout: WeightLayout, source: Source, tensors: Mapping[str, Tensor]) -> Array:
    """The packed matrix of each expert, one behind the other."""
    tensor, (experts, rows, columns) = tensors[source.tensor], source.shape
    sizes, dtype = layout.shape(rows, columns)
    packed = np.empty((experts, *sizes), dtype)
    for i in range(experts):
        packed[i] = _matrix(layout, (source,), {source.tensor: tensor.matrix(i)})
    return packed


def _row_order(source: Source, rows: int) -> Indices:
    """The order of rows for the kernels. In heads with rotary embedding, the rows 2i come first,
    then the rows 2i + 1."""
    order = np.arange(rows)
    if source.rope_heads:
        order = order.reshape(source.rope_heads, -1, 2).transpose(0, 2, 1).reshape(-1)
    return order


def _reordered(grouped: Grouped, order: Indices) -> Grouped:
    minimum = None if grouped.minimum is None else grouped.minimum[order]
    return replace(grouped, q=grouped.q[order], scale=grouped.scale[order], minimum=minimum)


def _joined(parts: list[Grouped]) -> Grouped:
    minima = [p.minimum for p in parts if p.minimum is not None]
    return replace(
        parts[0],
        q=np.concatenate([p.q for p in parts]),
        scale=np.concatenate([p.scale for p in parts]),
        minimum=np.concatenate(minima) if minima else None,
        half=all(p.half for p in parts),
    )


def _floats(tensor: Tensor) -> Floats:
    values = np.ascontiguousarray(dequantize(tensor.kind, tensor.data, tensor.shape))
    _check_finite(tensor.name, values)
    return values


def _check_finite(name: str, values: Floats) -> None:
    """Raise ModelFileError for NaN and infinity: a damaged file must not become a model."""
    if not np.isfinite(values).all():
        raise ModelFileError(f"tensor {name} holds NaN or infinite values: the file is damaged")
