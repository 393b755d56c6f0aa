"""The parameters of an MLC LLM folder, quantised piece by piece."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.shards import ShardWriter
from mlc_llm.errors import ModelFileError
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.mlc import TABLES
from mlc_llm.model_files.mlc_names import HEAD, HEADED, mlc_names
from mlc_llm.model_files.row_pieces import Rows, expert_pieces, weighed_pieces
from mlc_llm.models.vectors import LAST_NORM
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.group_schemes import Scheme, quantize_groups, stored, stored_numbers
from mlc_llm.quantization.names import changes
from mlc_llm.record import record

Array = npt.NDArray[np.generic]
_EMBEDDING, _HEAD = "token_embd.weight", "output.weight"


@record()
class Param:
    """A parameter of the folder: rows of one or more tensors, one below the other."""

    name: str
    parts: tuple[Rows, ...]
    quantized: bool
    transposed: bool
    importance: Floats | None = None
    """Of the columns; of a stack also [experts, columns]. See `quantize_groups`."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[rows, columns], [experts, rows, columns] or [values]."""
        axis = -min(2, len(self.parts[0].source.shape))
        shape = list(self.parts[0].source.shape)
        shape[axis] = sum(part.source.shape[axis] for part in self.parts)
        return tuple(shape)

    @property
    def values(self) -> int:
        """Numbers before they are quantised."""
        return math.prod(self.shape)

    def nbytes(self, scheme: Scheme) -> int:
        """Bytes in the folder."""
        number = 4 if scheme.dtype == "float32" else 2
        if not self.quantized:
            return number * self.values
        groups, words = scheme.sizes(self.shape[-1])
        return math.prod(self.shape[:-1]) * (4 * words + number * groups)

    def write(self, scheme: Scheme, writer: ShardWriter) -> None:
        """Quantise it and write it. Raises ModelFileError, OSError."""
        if self.quantized:
            _write_groups(self, scheme, writer)
            return
        numbers = (_numbers(self, scheme, piece) for piece, _ in self.pieces())
        writer.add(self.name, self.shape, scheme.dtype, self.nbytes(scheme), numbers)

    def pieces(self) -> Iterator[tuple[Floats, Floats | None]]:
        """All rows in order, and what an error in each of their columns costs."""
        own = self.importance
        if len(self.shape) < 3:
            for part in self.parts:
                yield from weighed_pieces(part, own)
            return
        for expert in range(self.shape[0]):
            cost = own[expert] if own is not None and own.ndim == 2 else own
            for part in self.parts:
                yield from ((piece, cost) for piece in expert_pieces(part, expert))


def mlc_params(
    plan: WeightPlan,
    tensors: Mapping[str, Tensor],
    scheme: Scheme,
    importance: Mapping[str, Floats] = {},
) -> list[Param]:
    """All parameters in the order of the plan. Raises UnsupportedModel for an architecture whose
    names are not known. importance: of the columns of matrices, by GGUF's names."""
    # A tensor of several matrices, as queries and their gates are one, is written whole.
    sources = {s.tensor: replace(s, part=None) for found in plan.matrices.values() for s in found}
    for name, source in plan.vectors.items():
        sources[LAST_NORM if name == "norm" else source.tensor] = source
    params = []
    for name, joined in mlc_names(plan.spec.architecture, sources).items():
        parts = tuple(Rows(tensors[sources[one].tensor], sources[one]) for one in joined)
        one = _param(name, joined[0], parts, scheme)
        params.append(replace(one, importance=importance.get(joined[0])))
    if plan.spec.tied_head and plan.spec.architecture in HEADED:
        source = sources[_EMBEDDING]
        parts = (Rows(tensors[source.tensor], source),)
        params.append(_param(f"{HEAD}.weight", _HEAD, parts, scheme))
    return params


def _param(name: str, tensor: str, parts: tuple[Rows, ...], scheme: Scheme) -> Param:
    axes = len(parts[0].source.shape)
    quantized = bool(scheme.bits) and axes > 1 and changes(scheme.name, tensor)
    if "shortconv.conv" in tensor:
        quantized = False
    layout = scheme.transposed and axes == 2 and tensor not in TABLES
    return Param(name, parts, quantized, quantized and layout)


def _write_groups(param: Param, scheme: Scheme, writer: ShardWriter) -> None:
    scales: list[Array] = []
    _write_rows(param, scheme, writer, "q_weight", _words(param, scheme, scales))
    _write_rows(param, scheme, writer, "q_scale", iter(scales))


def _words(param: Param, scheme: Scheme, scales: list[Array]) -> Iterator[Array]:
    """The words of all rows in order. The scales, which are far fewer, are put aside."""
    for piece, cost in param.pieces():
        grouped = quantize_groups(scheme, piece, cost)
        _check_finite(param, grouped.scale)
        made = stored(scheme, grouped, transposed=param.transposed)
        scales.append(made.q_scale)
        yield made.q_weight


def _write_rows(
    param: Param, scheme: Scheme, writer: ShardWriter, kind: str, made: Iterator[Array]
) -> None:
    """Write words or scales. In the layout KN all of them are there at once: rows of the file
    cross all pieces."""
    groups, words = scheme.sizes(param.shape[-1])
    dtype, count = ("uint32", words) if kind == "q_weight" else (scheme.dtype, groups)
    size = 4 if dtype in ("uint32", "float32") else 2
    shape = (*param.shape[:-1], count)
    if param.transposed:
        shape, made = shape[::-1], _crossed(list(made))
    name = f"{param.name.removesuffix('.weight')}.{kind}"
    writer.add(name, shape, dtype, size * math.prod(shape), made)


def _crossed(parts: list[Array]) -> Iterator[Array]:
    for row in range(parts[0].shape[0]):
        yield np.concatenate([part[row] for part in parts])


def _numbers(param: Param, scheme: Scheme, piece: Floats) -> Array:
    numbers = stored_numbers(piece, scheme.dtype)
    if numbers.dtype == np.float16:
        _check_finite(param, numbers.astype(np.float32))
    return numbers


def _check_finite(param: Param, values: Floats) -> None:
    if not np.isfinite(values).all():
        names = ", ".join(part.tensor.name for part in param.parts)
        raise ModelFileError(
            f"tensor {names} has values that float16 cannot hold; use a scheme of bfloat16"
        )
