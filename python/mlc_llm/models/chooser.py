"""The functions of a model library that choose tokens by logits."""

from __future__ import annotations

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.ops import Ops
from mlc_llm.models.spec import ModelSpec


class TokenChooser(nn.Module):  # type: ignore[misc]
    """A model that makes logits."""

    def __init__(self, spec: ModelSpec, ops: Ops) -> None:
        self.spec, self.ops = spec, ops

    def sample(self, logits: Tensor, options: Tensor, top_k: Tensor) -> Tensor:
        return self.ops.sample(self.spec.tokens, logits, options, top_k)

    def top_tokens(self, logits: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return self.ops.top_tokens(self.spec.tokens, logits, rows)

    def edit_logits(
        self, place: Tensor, number: Tensor, masked: Tensor, allowed: Tensor, logits: Tensor
    ) -> Tensor:
        return self.ops.edit_logits(self.spec.tokens, place, number, masked, allowed, logits)

    def keep_logits(self, logits: Tensor, rows: Tensor) -> Tensor:
        return self.ops.take_rows(logits, rows)

    def chosen_logits(self, kept: Tensor, rows: Tensor, token: Tensor) -> Tensor:
        return self.ops.chosen_logits(kept, rows, token)
