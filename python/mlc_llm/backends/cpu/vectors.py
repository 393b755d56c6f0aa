"""Vectors of tokens in pages, as calls of CPU kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.formats import PAGE
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.kernels.cpu.vector_pages import keep, kept


def keep_vectors(x: Tensor, slot: Tensor, pages: Sequence[Tensor], kv_dtype: str) -> list[Tensor]:
    """See `Ops.keep_vectors`."""
    columns, found = int(x.shape[1]), []
    for one, heads, dim, start, count in _parts(columns, pages):
        kernel = keep(heads, dim, kv_dtype, columns, start, count)
        out = Tensor.placeholder(one.shape, kv_dtype)
        found.append(op.tensor_ir_inplace_op(kernel, "keep_vectors", [x, slot, one], 2, out))
    return found


def kept_vectors(width: int, pages: Sequence[Tensor], slot: Tensor, kv_dtype: str) -> Tensor:
    """See `Ops.kept_vectors`."""
    y = op.empty([slot.shape[0], width], "float32")
    for one, heads, dim, start, count in _parts(width, pages):
        kernel = kept(heads, dim, kv_dtype, width, start, count)
        out = float_tensor(*y.shape)
        y = op.tensor_ir_inplace_op(kernel, "kept_vectors", [one, slot, y], 2, out)
    return y


def _parts(width: int, pages: Sequence[Tensor]) -> Iterator[tuple[Tensor, int, int, int, int]]:
    """Of each tensor of pages its heads and their size, and the first number and how many of each
    vector it has."""
    start = 0
    for one in pages:
        heads, dim = int(one.shape[1]), int(one.shape[3]) // PAGE
        count = min(2 * heads * dim, width - start)
        yield one, heads, dim, start, count
        start += count
