"""What a product reads: an input, quantised or not, as its matrix wants it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.kernels.cpu.activation import Source, floats, quantize
from mlc_llm.kernels.cpu.bf16 import TILE_ROWS, prepare_fast, prepare_fast_integers
from mlc_llm.kernels.cpu.matmul import can_quantize, leaves_quantised
from mlc_llm.kernels.cpu.quant_blocks import quantize_blocks, row_width
from mlc_llm.kernels.cpu.quantized_rows import quantized_width
from mlc_llm.kernels.cpu.split import split_rows
from mlc_llm.kernels.types import Index


class Packed(Protocol):
    """A matrix, or a stack of matrices of one size."""

    columns: int
    fmt: WeightFormat


@dataclass
class Input:
    """x, of which a kernel makes what a product reads.

    kind, weight and bias: as in `kernels/row_kinds.py`; eps belongs to a norm.
    """

    kind: str
    x: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0
    _prepared: dict[tuple[bool, bool, int, bool], Tensor] = field(default_factory=dict)
    """The tensors made of it, by the way in which a matrix reads them."""
    _floats: Tensor | None = None
    _parts: Tensor | None = None

    @property
    def arguments(self) -> list[Tensor]:
        """What kernels of this kind take first."""
        args = [self.x, self.x if self.weight is None else self.weight]
        return args if self.bias is None else [*args, self.bias]

    def given_to(
        self,
        matrix: Packed,
        isa: Isa,
        scratch: Scratch,
        fast: Tensor | None,
        *,
        split: bool,
    ) -> tuple[list[Tensor], Source | None]:
        """What the product of the matrix takes of the input; and of which rows it quantises it into
        the last of these tensors, for itself and, where `leaves_quantised`, for all that read it
        later: None if it is made already, or by a kernel of its own. fast: the number of fast
        tokens. split: in two parts of each number (`split.py`)."""
        if split:
            return [self._split(matrix.columns, scratch)], None
        key = _way(matrix, fast)
        if key in self._prepared or not can_quantize(matrix.fmt, isa, fast=fast is not None):
            return [self.read_by(matrix, isa, scratch, fast)], None
        out = self._quantised(matrix, self.x.shape[0])
        made = scratch.tensor(out.shape, out.dtype, beside=True)
        if leaves_quantised(isa):
            self._prepared[key] = made
        return [*self.arguments, made], Source(self.kind, self.eps)

    def read_by(
        self, matrix: Packed, isa: Isa, scratch: Scratch, fast: Tensor | None = None
    ) -> Tensor:
        """The input as the matrix reads it, made once."""
        key = _way(matrix, fast)
        if key not in self._prepared:
            self._prepared[key] = self._prepare(matrix, isa, scratch, fast)
        return self._prepared[key]

    def replace(self, old: Tensor, new: Tensor) -> None:
        """`new` stands for a tensor that was made of it, and that a kernel has gone over."""
        self._prepared = {key: new if one is old else one for key, one in self._prepared.items()}
        self._floats = new if self._floats is old else self._floats

    def _split(self, k: int, scratch: Scratch) -> Tensor:
        """The input as `split_rows` makes it, made once."""
        if self._parts is None:
            out = Tensor.placeholder([self.x.shape[0] + TILE_ROWS, k], "int32")
            kernel, name = split_rows(self.kind, k, self.eps), f"{self.kind}_{k}_split"
            self._parts = scratch.call(kernel, name, self.arguments, out)
        return self._parts

    def _quantised(self, matrix: Packed, rows: Index) -> Tensor:
        """The shape of so many rows as `quantize` makes them."""
        groups, width = matrix.columns // matrix.fmt.group, quantized_width(matrix.fmt.group)
        return Tensor.placeholder([rows, groups, width], "int32")

    def as_floats(self, columns: int, scratch: Scratch) -> Tensor:
        """The input as float32 [tokens, columns]."""
        return self.x if self.kind == "plain" else self._as_floats(columns, scratch)

    def _as_floats(self, k: int, scratch: Scratch) -> Tensor:
        """The same as a tensor of its own, made once."""
        if self._floats is None:
            out, kernel = float_tensor(self.x.shape[0], k), floats(self.kind, k, self.eps)
            name = f"{self.kind}_{k}"
            self._floats = scratch.call(kernel, name, self.arguments, out)
        return self._floats

    def _prepare(self, matrix: Packed, isa: Isa, scratch: Scratch, fast: Tensor | None) -> Tensor:
        """Calls the kernel that makes what the matrix reads."""
        kind, args, eps = self.kind, self.arguments, self.eps
        m, k, group = self.x.shape[0], matrix.columns, matrix.fmt.group
        if not isa.integer or matrix.fmt.reads_floats:
            return self._as_floats(k, scratch)
        if matrix.fmt.is_fixed_point:
            if fast is not None:
                out = Tensor.placeholder([m + TILE_ROWS, row_width(k)], "int32")
                kernel = prepare_fast(kind, k, isa, eps)
                return scratch.call(kernel, f"{kind}_{k}_fast", [*args, fast], out)
            out = Tensor.placeholder([m, row_width(k)], "int32")
            return scratch.call(quantize_blocks(kind, k, isa, eps), f"{kind}_{k}_blocks", args, out)
        if fast is not None and isa.amx_tiles:
            kernel = prepare_fast_integers(kind, k, group, isa, eps)
            out = self._quantised(matrix, m + TILE_ROWS)
            return scratch.call(kernel, f"{kind}_{k}g{group}_fast", [*args, fast], out)
        kernel = quantize(kind, k, group, isa, eps)
        return scratch.call(kernel, f"{kind}_{k}g{group}", args, self._quantised(matrix, m))


def _way(matrix: Packed, fast: Tensor | None) -> tuple[bool, bool, int, bool]:
    """How a matrix reads its input."""
    fmt = matrix.fmt
    return fmt.reads_floats, fmt.is_fixed_point, fmt.group, fast is not None
