"""Vectors of tokens in pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.kernels.reference import PAGE
from mlc_llm.kernels.reference_vectors import keep, kept


def keep_vectors(x: Tensor, slot: Tensor, pages: Sequence[Tensor]) -> list[Tensor]:
    """See `Ops.keep_vectors`."""
    columns, found = int(x.shape[1]), []
    for one, sizes in _parts(columns, pages):
        kernel, out = keep(*sizes), Tensor.placeholder(one.shape, "float32")
        found.append(op.tensor_ir_inplace_op(kernel, "keep_vectors", [x, slot, one], 2, out))
    return found


def kept_vectors(width: int, pages: Sequence[Tensor], slot: Tensor) -> Tensor:
    """See `Ops.kept_vectors`."""
    y = op.zeros([slot.shape[0], width])
    for one, sizes in _parts(width, pages):
        kernel, out = kept(*sizes), Tensor.placeholder(y.shape, "float32")
        y = op.tensor_ir_inplace_op(kernel, "kept_vectors", [one, slot, y], 2, out)
    return y


def _parts(
    width: int, pages: Sequence[Tensor]
) -> Iterator[tuple[Tensor, tuple[int, int, int, int, int]]]:
    """Each tensor of pages with the sizes that its kernel takes."""
    start = 0
    for one in pages:
        heads, dim = int(one.shape[1]), int(one.shape[3]) // PAGE
        count = min(2 * heads * dim, width - start)
        yield one, (heads, dim, width, start, count)
        start += count
