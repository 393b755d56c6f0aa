"""Tensors that layers share."""

from __future__ import annotations

from typing import Any

from tvm.relax.frontend.nn import Tensor, op


def float_tensor(*shape: Any) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


class Scratch:
    """The tensors that the first layer makes; later layers write into the same ones.

    The virtual machine takes longer to make a tensor than to call a small kernel.
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[Any, ...], Tensor] = {}
        self._count = 0

    def start_layer(self) -> None:
        """What the layer before has made is not needed any more."""
        self._count = 0

    def tensor(self, shape: list[Any], dtype: str = "float32") -> Tensor:
        """A tensor to write into; its values are not defined."""
        key = (self._count, dtype, *map(str, shape))
        self._count += 1
        if key not in self._tensors:
            self._tensors[key] = op.empty(shape, dtype)
        return self._tensors[key]

    def call(self, kernel: Any, name: str, args: list[Any], out: Tensor) -> Tensor:
        """Calls a kernel whose last argument is its result, shaped as `out`."""
        into = self.tensor(out.shape, out.dtype)
        return op.tensor_ir_inplace_op(kernel, name, [*args, into], len(args), out)
