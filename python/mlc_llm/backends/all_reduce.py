"""The sum over all ranks, the same for every backend: a packed function of the process adds it."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.library.signatures import ALL_REDUCE


def reduced(x: Tensor) -> Tensor:
    """The sum of x over all ranks, in a tensor of its own."""
    total: Tensor = op.extern(ALL_REDUCE, [x], Tensor.placeholder(x.shape, x.dtype))
    return total
