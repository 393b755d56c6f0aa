"""CPU operations that record, beside their work, what enters each matrix of floats."""

from __future__ import annotations

from dataclasses import dataclass

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.ops import CpuOps, PackedMatrix
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.errors import UnsupportedModel
from mlc_llm.kernels.cpu.squares import add_squares
from mlc_llm.models.spec import ExpertsSpec, ModelSpec

SQUARES = "squares"
"""The parameter of a matrix, float32 [columns], that the squares of its inputs are added to."""


@dataclass(frozen=True)
class RecordingBackend(CpuBackend):
    """As the kernels that it is made of. All matrices have to be of floats."""

    def check(self, spec: ModelSpec) -> None:
        super().check(spec)
        if any(isinstance(layer.feed_forward, ExpertsSpec) for layer in spec.layers):
            raise UnsupportedModel("models with experts cannot be calibrated")

    def ops(self) -> RecordingOps:
        return RecordingOps(self.isa)


class RecordingMatrix(PackedMatrix):
    """A packed matrix and the sums of its inputs' squares."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix.rows, matrix.columns, matrix.fmt, is_fast=matrix.is_fast)
        self.squares = nn.Parameter((matrix.columns,), "float32")


class RecordingOps(CpuOps):
    """See `RecordingBackend`."""

    def matrix(self, rows: int, columns: int, kind: str, role: str) -> PackedMatrix:
        return RecordingMatrix(super().matrix(rows, columns, kind, role))

    def _prepared(self, given: Input, matrix: PackedMatrix, fast: Tensor | None) -> Tensor:
        read = super()._prepared(given, matrix, fast)
        assert isinstance(matrix, RecordingMatrix) and matrix.fmt.is_float
        outs = [float_tensor(*read.shape), float_tensor(matrix.columns)]
        kernel, args = add_squares(matrix.columns), [read, matrix.squares]
        read, _ = op.tensor_ir_inplace_op(kernel, "add_squares", args, [0, 1], outs)
        return read
