"""The numbers that every decoder has, whichever file they come from."""

from __future__ import annotations

from collections.abc import Sequence

from mlc_llm.errors import ModelFileError
from mlc_llm.models.attention_spec import AttentionSpec, RopeSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.record import record


@record()
class Sizes:
    """As in `ModelSpec` and its parts, with one value for all layers."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    context_window: int
    norm_eps: float
    tied_head: bool

    def attention(self, scale: float | None = None) -> AttentionSpec:
        """scale: None is 1 / sqrt(head_dim). Raises ModelFileError for heads without elements."""
        if self.head_dim < 1:
            words = f"{self.heads} attention heads of {self.hidden} elements together"
            raise ModelFileError(f"{words}; at least one element for each head was expected")
        one = self.head_dim**-0.5 if scale is None else scale
        return AttentionSpec(self.heads, self.kv_heads, self.head_dim, one)

    def model(
        self,
        layers: Sequence[LayerSpec],
        ropes: Sequence[RopeSpec],
        *,
        embedding_scale: float = 1.0,
        logit_cap: float | None = None,
    ) -> ModelSpec:
        assert len(layers) == self.layers, "layers"
        return ModelSpec(
            architecture=self.architecture,
            hidden=self.hidden,
            vocab=self.vocab,
            context_window=self.context_window,
            norm_eps=self.norm_eps,
            layers=tuple(layers),
            ropes=tuple(ropes),
            tied_head=self.tied_head,
            embedding_scale=embedding_scale,
            logit_cap=logit_cap,
        )
