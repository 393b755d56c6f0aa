"""Scratch tensors that all layers of a model share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import tvm
from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.types import Index


def float_tensor(*shape: Index) -> Tensor:
    """A placeholder that tells an operator the shape of its result."""
    return Tensor.placeholder(list(shape), "float32")


def like(tensor: Tensor) -> Tensor:
    """The same, for a tensor that the operator changes in place."""
    return float_tensor(*tensor.shape)


class Scratch:
    """The tensors that the first layer makes; later layers write into the same ones.

    The virtual machine takes longer to make a tensor than to call a small kernel. The first tensor
    of a shape is the same one in all layers, also where they call different kernels. What a layer
    returns must not be a scratch tensor (`overwrites.py` looks for that).
    """

    def __init__(self) -> None:
        self._tensors: dict[tuple[str, ...], list[Tensor]] = {}
        self._used: Counter[tuple[str, ...]] = Counter()

    def start_layer(self) -> None:
        """From here on the tensors of the layer before may be overwritten."""
        self._used.clear()

    def tensor(
        self, shape: Sequence[Index], dtype: str = "float32", *, beside: bool = False
    ) -> Tensor:
        """A tensor to write into; its values are not defined. beside: a kernel writes it beside its
        result, which `overwrites.py` does not see, so that it is never one of the others."""
        key = (dtype, str(beside), *map(str, shape))
        made, used = self._tensors.setdefault(key, []), self._used[key]
        self._used[key] += 1
        if used == len(made):
            made.append(op.empty(list(shape), dtype))
        return made[used]

    def call(
        self, kernel: tvm.tirx.PrimFunc, name: str, args: Sequence[Tensor], out: Tensor
    ) -> Tensor:
        """Calls a kernel whose last argument is its result, shaped as `out`."""
        into = self.tensor(out.shape, out.dtype)
        return op.tensor_ir_inplace_op(kernel, name, [*args, into], len(args), out)
