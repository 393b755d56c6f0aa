"""Several matrices that read the same input."""

from __future__ import annotations

from itertools import accumulate

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import Input
from mlc_llm.backends.operands import Part as Columns
from mlc_llm.backends.ops import Ops
from mlc_llm.models.spec import ModelSpec

KEPT = ("k", "v")
"""Parts, keys and values, that pages keep: later tokens read them again and again."""


class Part(nn.Module):  # type: ignore[misc]
    """A name between a layer and its matrices, as in `layers.0.qkv.q_k_v`."""


class MergedLinear:
    """Matrices that share an input: one product where their tensor types agree, else one each.

    `owner` gets them as parameters, named as in `kinds` behind `prefix`. Parts k and v are what
    the pages of a decoder keep.
    """

    def __init__(
        self,
        owner: nn.Module,
        parts: dict[str, int],
        columns: int,
        spec: ModelSpec,
        prefix: str,
        ops: Ops,
    ) -> None:
        self._ops, joined = ops, "_".join(parts)
        self._is_joined = f"{prefix}{joined}" in spec.kinds
        self._widths = list(parts.values())
        sizes = {joined: sum(self._widths)} if self._is_joined else parts
        role = prefix.rstrip(".").split(".")[-1]
        self._matrices = []
        for name, rows in sizes.items():
            kept = range(0) if spec.encoder else _kept(parts if self._is_joined else {name: rows})
            matrix = ops.matrix(rows, columns, spec.kinds[prefix + name], role, kept)
            setattr(owner, name, matrix)
            self._matrices.append(matrix)

    def __call__(self, x: Input) -> list[Columns]:
        """Each part; the tensors are one and the same if joined."""
        results = [self._ops.linear(matrix, x) for matrix in self._matrices]
        if not self._is_joined:
            return [Columns(result) for result in results]
        starts = [sum(self._widths[:i]) for i in range(len(self._widths))]
        return [Columns(results[0], start) for start in starts]

    def with_biases(self, x: Input, *biases: Tensor) -> list[Columns]:
        """The same, each part with its bias."""
        parts = zip(self(x), biases, strict=True)
        return [part._replace(bias=bias) for part, bias in parts]


def _kept(parts: dict[str, int]) -> range:
    """Rows of the keys and values in a matrix of these parts, by their rows."""
    ends = dict(zip(parts, accumulate(parts.values()), strict=True))
    kept = [name for name in parts if name in KEPT]
    return range(ends[kept[0]] - parts[kept[0]], ends[kept[-1]]) if kept else range(0)
