"""What happens to the rows of single tokens, as calls of GPU kernels: vectors that are put in or
kept in pages, gates, and what adapters add."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cuda.calls import Input, as_input, call, change, float_tensor
from mlc_llm.backends.cuda.formats import PAGE
from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.kernels.cuda.adapters import adapter_down, adapter_up
from mlc_llm.kernels.cuda.elementwise import changed
from mlc_llm.kernels.cuda.token_rows import keep, kept, put_rows, token_gate, token_inputs


class RowOps:
    """Some of the operations of `backends.ops.Ops`."""

    def put_rows(self, x: Tensor, at: Tensor, rows: Tensor) -> Tensor:
        return change(put_rows(int(x.shape[1])), "put_rows", [at, rows], x)

    def token_gated(self, x: Tensor | Input, weight: Tensor, y: Tensor) -> Tensor:
        k = int(weight.shape[0])
        return change(
            token_gate(k, int(y.shape[1])), "token_gate", [as_input(x).planes(k), weight], y
        )

    def token_inputs(self, embedded: Tensor, context: Tensor, weight: Tensor, eps: float) -> Tensor:
        width = int(weight.shape[0])
        parts = int(embedded.shape[1]) // width
        kernel = token_inputs(parts, width, int(context.shape[1]), eps)
        return change(kernel, "token_inputs", [context, weight], embedded)

    def copied(self, x: Tensor) -> Tensor:
        return call(changed(int(x.shape[1])), "copy_rows", [x], float_tensor(*x.shape))

    def keep_vectors(self, x: Tensor, slot: Tensor, pages: Sequence[Tensor]) -> list[Tensor]:
        columns = int(x.shape[1])
        return [
            change(keep(*sizes, columns, *part), "keep_vectors", [x, slot], one)
            for one, sizes, part in _parts(columns, pages)
        ]

    def kept_vectors(self, width: int, pages: Sequence[Tensor], slot: Tensor) -> Tensor:
        y = op.empty([slot.shape[0], width], "float32")
        for one, sizes, part in _parts(width, pages):
            y = change(kept(*sizes, width, *part), "kept_vectors", [one, slot], y)
        return y


def _parts(
    width: int, pages: Sequence[Tensor]
) -> Iterator[tuple[Tensor, tuple[int, int], tuple[int, int]]]:
    """Of each tensor of pages its heads and their size, and the first number and how many of each
    vector it has."""
    start = 0
    for one in pages:
        heads, dim = int(one.shape[1]), int(one.shape[3]) // PAGE
        count = min(2 * heads * dim, width - start)
        yield one, (heads, dim), (start, count)
        start += count


def with_adapters(y: Tensor, planes: Tensor, k: int, inputs: AdapterInputs) -> Tensor:
    """y in place. planes: of what a matrix of k columns has read."""
    parts, tables = len(inputs.widths), [inputs.ranks, inputs.slots]
    out = float_tensor(planes.shape[0], parts, inputs.down.shape[2])
    small = call(adapter_down(k, parts), "adapter_down", [planes, inputs.down, *tables], out)
    up = adapter_up(int(y.shape[1]), inputs.widths)
    return change(up, "adapter_up", [small, inputs.up, *tables], y)
