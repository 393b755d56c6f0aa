"""Calls of GPU kernels inside a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import tvm
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.cuda.activation import prepare
from mlc_llm.kernels.cuda.planes import row_words
from mlc_llm.kernels.types import Index


def float_tensor(*shape: Index) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


def call(kernel: tvm.tirx.PrimFunc, name: str, args: Sequence[Tensor], out: Tensor) -> Tensor:
    """Calls a kernel whose last argument is its result, shaped as `out`."""
    return op.tensor_ir_op(kernel, name, list(args), out)


def change(kernel: tvm.tirx.PrimFunc, name: str, args: Sequence[Tensor], x: Tensor) -> Tensor:
    """Calls a kernel whose last argument is x, which it changes in place."""
    out = Tensor.placeholder(list(x.shape), x.dtype)
    return op.tensor_ir_inplace_op(kernel, name, [*args, x], len(args), out)


@dataclass
class Input:
    """x, of which a kernel makes what a product reads (`kernels/cuda/activation.py`).

    kind, weight and bias: as in `kernels/row_kinds.py`; eps belongs to a norm.
    """

    kind: str
    x: Tensor
    weight: Tensor | None = None
    bias: Tensor | None = None
    eps: float = 0.0
    _planes: dict[int, Tensor] = field(default_factory=dict)
    """By the number of columns."""

    def planes(self, k: int) -> Tensor:
        """The input as two planes of float16, made once."""
        if k not in self._planes:
            args = [self.x, self.x if self.weight is None else self.weight]
            args += [] if self.bias is None else [self.bias]
            out = Tensor.placeholder([self.x.shape[0], row_words(k)], "uint32")
            kernel = prepare(self.kind, k, self.eps)
            self._planes[k] = call(kernel, f"{self.kind}_{k}", args, out)
        return self._planes[k]


def as_input(x: Tensor | Input) -> Input:
    """What `Ops.linear` multiplies, also if it is a plain tensor."""
    return x if isinstance(x, Input) else Input("plain", x)
