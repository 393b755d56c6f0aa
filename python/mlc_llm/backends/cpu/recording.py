"""CPU operations that record, beside their work, what enters each matrix of floats."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.experts import ExpertCalls, ExpertStack, Routes
from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.ops import CpuOps, PackedMatrix
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.backends.operands import ExpertMatrices
from mlc_llm.kernels.cpu.activation import Source
from mlc_llm.kernels.cpu.squares import add_expert_squares, add_squares
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.record import record

SQUARES = "squares"
"""The parameter of a matrix, float32 [columns], that the squares of its inputs are added to. Of the
matrices of experts: [experts, columns + 1], where the last number counts the rows of the expert."""


@record()
class RecordingBackend(CpuBackend):
    """As the kernels that it is made of. All matrices have to be of floats."""

    def ops(self) -> RecordingOps:
        return RecordingOps(self.isa)


class RecordingMatrix(PackedMatrix):
    """A packed matrix and the sums of its inputs' squares."""

    def __init__(self, matrix: PackedMatrix) -> None:
        super().__init__(matrix.rows, matrix.columns, matrix.fmt, is_fast=matrix.is_fast)
        self.squares = nn.Parameter((matrix.columns,), "float32")


class RecordingStack(ExpertStack):
    """The packed matrices of experts and the sums of their inputs' squares."""

    def __init__(self, stack: ExpertStack) -> None:
        super().__init__(stack.experts, stack.rows, stack.columns, stack.fmt)
        self.squares = nn.Parameter((stack.experts, stack.columns + 1), "float32")


class RecordingExperts(ExpertCalls):
    """The calls for the experts of one layer, which record."""

    def _before(self, routes: Routes, name: str, rows: Tensor) -> Tensor:
        stack = getattr(self._matrices, name)
        assert isinstance(stack, RecordingStack) and stack.fmt.is_float
        kernel = add_expert_squares(stack.experts, stack.columns)
        outs = [float_tensor(*rows.shape), float_tensor(stack.experts, stack.columns + 1)]
        args = [routes.starts, rows, stack.squares]
        rows, _ = op.tensor_ir_inplace_op(kernel, "add_expert_squares", args, [1, 2], outs)
        return rows


class RecordingOps(CpuOps):
    """See `RecordingBackend`."""

    def expert_matrices(self, experts: int, rows: int, columns: int, kind: str) -> RecordingStack:
        return RecordingStack(super().expert_matrices(experts, rows, columns, kind))

    def _experts(self, spec: ExpertsSpec, matrices: ExpertMatrices) -> RecordingExperts:
        return RecordingExperts(spec, matrices, self._isa, self._scratch)

    def matrix(
        self, rows: int, columns: int, kind: str, role: str, kept: range = range(0)
    ) -> PackedMatrix:
        return RecordingMatrix(super().matrix(rows, columns, kind, role, kept))

    def _is_split(self, matrix: PackedMatrix, fast: Tensor | None) -> bool:
        """What is recorded are floats as the matrix reads them."""
        return False

    def _read(
        self, given: Input, matrix: PackedMatrix, fast: Tensor | None, *, split: bool
    ) -> tuple[list[Tensor], Source | None]:
        assert isinstance(matrix, RecordingMatrix) and matrix.fmt.is_float
        (read,), _ = super()._read(given, matrix, fast, split=split)
        outs = [float_tensor(*read.shape), float_tensor(matrix.columns)]
        kernel, args = add_squares(matrix.columns), [read, matrix.squares]
        recorded, _ = op.tensor_ir_inplace_op(kernel, "add_squares", args, [0, 1], outs)
        given.replace(read, recorded)
        return [recorded], None
