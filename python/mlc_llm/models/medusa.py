"""Medusa heads, from their spec."""

from __future__ import annotations

from functools import partial

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.ops import Ops
from mlc_llm.models.chooser import TokenChooser
from mlc_llm.models.medusa_plan import bias_name, block_name, head_name
from mlc_llm.models.spec import ModelSpec


class Medusa(TokenChooser):
    """Its public methods become the functions of a library (`library/medusa_signatures.py`)."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        assert spec.medusa is not None
        super().__init__(spec, ops)
        self.blocks = range(spec.medusa.blocks)
        for head in range(spec.medusa.heads):
            self._add_head(head)
            setattr(self, f"draft_{head}", partial(self._draft, head))

    def _add_head(self, head: int) -> None:
        spec, width = self.spec, self.spec.hidden
        for block in self.blocks:
            name = block_name(head, block)
            setattr(self, name, self.ops.matrix(width, width, spec.kinds[name], "mlp"))
            setattr(self, bias_name(head, block), nn.Parameter((width,), "float32"))
        name = head_name(head)
        setattr(self, name, self.ops.matrix(spec.vocab, width, spec.kinds[name], "head"))

    def _draft(self, head: int, hidden: Tensor) -> Tensor:
        """The logits of one head."""
        ops, x = self.ops, hidden
        ops.begin()
        for block in self.blocks:
            matrix = getattr(self, block_name(head, block))
            bias = getattr(self, bias_name(head, block))
            x = ops.add(ops.activated_rows("silu", ops.linear(matrix, x, bias=bias)), x)
        return ops.linear(getattr(self, head_name(head)), x)
