"""Scratch tensors that all layers of a model share."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.types import Index


def float_tensor(*shape: Index) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


class Scratch:
    """The tensors that the first layer makes; later layers write into the same ones.

    The virtual machine takes longer to make a tensor than to call a small kernel.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[int | str, ...], Tensor] = {}
        self._count = 0

    def start_layer(self) -> None:
        """From here on the tensors of the layer before may be overwritten."""
        self._count = 0

    def tensor(self, shape: Sequence[Index], dtype: str = "float32") -> Tensor:
        """A tensor to write into; its values are not defined."""
        key: tuple[int | str, ...] = (self._count, dtype, *map(str, shape))
        self._count += 1
        if key not in self._tensors:
            self._tensors[key] = op.empty(list(shape), dtype)
        return self._tensors[key]

    def call(
        self, kernel: tvm.tirx.PrimFunc, name: str, args: Sequence[Tensor], out: Tensor
    ) -> Tensor:
        """Calls a kernel whose last argument is its result, shaped as `out`."""
        into = self.tensor(out.shape, out.dtype)
        return op.tensor_ir_inplace_op(kernel, name, [*args, into], len(args), out)
