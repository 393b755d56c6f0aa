"""What a few rows need that are not tokens of a layer, as calls of GPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import call, change, float_tensor
from mlc_llm.kernels.cuda.draft_rows import at_most_one, put_columns, spread
from mlc_llm.kernels.cuda.elementwise import changed
from mlc_llm.kernels.cuda.plain_rows import (
    activate,
    first_columns,
    float_product,
    joined_squares,
    zeros,
)
from mlc_llm.kernels.cuda.row_norm import row_norm
from mlc_llm.models.image_spec import Join
from mlc_llm.models.network_spec import Activation


class PlainOps:
    """Some of the operations of `backends.ops.Ops`."""

    def activated_rows(self, activation: Activation, x: Tensor) -> Tensor:
        return change(activate(int(x.shape[1]), activation), f"{activation}_rows", [], x)

    def zeros(self, width: int) -> Tensor:
        return call(zeros(width), "zeros", [], float_tensor(width))

    def first_columns(self, x: Tensor, width: int) -> Tensor:
        kernel, out = first_columns(int(x.shape[1]), width), float_tensor(x.shape[0], width)
        return call(kernel, "first_columns", [x], out)

    def float_product(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        rows, k = map(int, weight.shape)
        out = float_tensor(x.shape[0], rows)
        return call(float_product(k, rows), "float_product", [x, weight, bias], out)

    def columns_beside(self, parts: Sequence[Tensor]) -> Tensor:
        widths = [int(one.shape[1]) for one in parts]
        y, start, total = op.empty([parts[0].shape[0], sum(widths)], "float32"), 0, sum(widths)
        for one, width in zip(parts, widths, strict=True):
            y = change(put_columns(width, start, total), "put_columns", [one], y)
            start += width
        return y

    def normed_copy(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = int(x.shape[1])
        own = call(changed(width), "copy_rows", [x], float_tensor(*x.shape))
        return change(row_norm(width, eps), "norm_rows", [weight], own)

    def at_most_one(self, x: Tensor) -> Tensor:
        return call(at_most_one(), "at_most_one", [x], Tensor.placeholder(list(x.shape), "int32"))

    def spread(self, x: Tensor, row: Tensor, total: int, lowest: float) -> Tensor:
        kernel = spread(int(x.shape[1]), int(row.shape[0]), total, lowest)
        return call(kernel, "spread_columns", [x, row], float_tensor(x.shape[0], total))

    def joined_squares(self, x: Tensor, side: int, size: int, join: Join) -> Tensor:
        width = int(x.shape[1])
        out = float_tensor(side**2, width if join == "mean" else width * size**2)
        return call(joined_squares(side, size, width, join), "joined_squares", [x], out)
