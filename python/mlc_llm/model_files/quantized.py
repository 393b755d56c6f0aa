"""A model whose matrices are quantised when they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from mlc_llm.errors import UnsupportedModel, UserError
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.changed import ChangedFiles
from mlc_llm.model_files.row_pieces import Rows, weighed_pieces
from mlc_llm.model_files.tensor_views import View
from mlc_llm.models.sources import Source
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.block_format import Bytes, Floats
from mlc_llm.quantization.ggml_quantize import (
    QUANTIZERS,
    TARGETS,
    WEIGHTED,
    quantize,
    quantize_weighted,
)
from mlc_llm.quantization.group_blocks import GROUP, as_blocks, group_kind
from mlc_llm.quantization.group_schemes import (
    SCHEMES,
    Scheme,
    dequantize_groups,
    quantize_groups,
    stored,
    stored_numbers,
)
from mlc_llm.quantization.names import AWQ, FOLDERS, changes, check_name
from mlc_llm.record import record

_NUMBERS = {"float16": "F16", "bfloat16": "BF16", "float32": "F32"}


class Quantize(Protocol):
    """Rows float32 [rows, columns] as bytes. importance: see `quantize_groups`."""

    def __call__(self, rows: Floats, importance: Floats | None = None) -> Bytes: ...


class Target(NamedTuple):
    """A tensor type, and how rows float32 [rows, columns] become its bytes."""

    kind: str
    block: int
    quantize: Quantize
    keeps: bool = True
    """Matrices that have the type already stay as they are."""


def target_of(quantization: str) -> Target:
    """Raises InvalidField with all names."""
    check_name(quantization)
    if FOLDERS.get(quantization) is AWQ:
        raise UserError(
            f"quantization = {quantization!r}: AWQ needs a text and a long search; "
            "convert_weight takes folders that AWQ has quantised, and these run as they are"
        )
    scheme = SCHEMES.get(quantization)
    if scheme is None:
        kind = quantization.upper()
        block = QUANTIZERS[kind].block if kind in QUANTIZERS else 1
        return Target(kind, block, partial(_of_gguf, kind))
    blocks = group_kind(scheme)
    if blocks is not None:
        return Target(blocks, GROUP, partial(_blocks, scheme))
    if scheme.bits:  # no packed format has such groups: the values are kept as they are
        return Target("F32", 1, partial(_values, scheme), keeps=False)
    return Target(_NUMBERS[scheme.dtype], 1, partial(_numbers, scheme))


def check_rows(tensor: Tensor, target: Target, quantization: str) -> None:
    """Raises UnsupportedModel for rows that are not whole blocks; it says which types fit."""
    columns = tensor.shape[-1]
    if columns % target.block == 0:
        return
    fitting = [kind.lower() for kind in TARGETS if kind not in QUANTIZERS]
    fitting += [kind.lower() for kind, one in QUANTIZERS.items() if columns % one.block == 0]
    raise UnsupportedModel(
        f"tensor {tensor.name}: rows of {columns} values are not whole {quantization} blocks "
        f"of {target.block}; these fit: {', '.join(fitting)}"
    )


@record()
class QuantizedView(View):
    """A matrix, or a stack of them, in another type. Its rows are in the source's order."""

    target: Target
    importance: Floats | None = None
    """Of the columns; of a stack also [experts, columns]."""

    @property
    def kind(self) -> str:
        return self.target.kind

    @property
    def data(self) -> Bytes:
        rows = Rows(self.of, Source(self.name, self.shape))
        weighed = weighed_pieces(rows, self.importance)
        return np.concatenate([self.target.quantize(piece, own) for piece, own in weighed])

    def matrix(self, index: int) -> Tensor:
        own = self.importance
        if own is not None and own.ndim == 2:
            own = own[index]
        of = self.of.matrix(index)
        return replace(self, of=of, shape=of.shape, importance=own)


@record()
class QuantizedModel(ChangedFiles):
    """See `ModelFiles`."""

    quantization: str | None
    tensors: Mapping[str, Tensor]

    @classmethod
    def of_files(
        cls, files: ModelFiles, quantization: str, importance: Mapping[str, Floats] = {}
    ) -> QuantizedModel:
        """importance: of the columns of matrices, by GGUF's names; see `quantize_groups`. Raises
        InvalidField, UnsupportedModel, ModelFileError."""
        target, tensors = target_of(quantization), dict(files.tensors)
        for found in files.plan().matrices.values():
            for name in (source.tensor for source in found):
                one = files.tensors[name]
                same = target.keeps and one.kind == target.kind
                if not same and changes(quantization, name):
                    check_rows(one, target, quantization)
                    tensors[name] = QuantizedView(one, one.shape, target, importance.get(name))
        return cls(files, quantization, tensors)

    @property
    def changes(self) -> str | None:
        return self.quantization

    def plan(self) -> WeightPlan:
        plan = self.of.plan()
        kinds = {prefix: self.tensors[s[0].tensor].kind for prefix, s in plan.matrices.items()}
        return replace(plan, spec=replace(plan.spec, kinds=kinds))


def _of_gguf(kind: str, rows: Floats, importance: Floats | None = None) -> Bytes:
    if importance is not None and kind in WEIGHTED:
        return quantize_weighted(kind, rows, importance)
    return quantize(kind, rows)


def _blocks(scheme: Scheme, rows: Floats, importance: Floats | None = None) -> Bytes:
    grouped = quantize_groups(scheme, rows, importance)
    return as_blocks(*stored(scheme, grouped, transposed=False))


def _values(scheme: Scheme, rows: Floats, importance: Floats | None = None) -> Bytes:
    return dequantize_groups(quantize_groups(scheme, rows, importance)).reshape(-1).view(np.uint8)


def _numbers(scheme: Scheme, rows: Floats, importance: Floats | None = None) -> Bytes:
    return stored_numbers(rows, scheme.dtype).reshape(-1).view(np.uint8)
