"""What most architectures read out of GGUF metadata.

Source: the GGUF specification (ggml, docs/gguf.md), section "Architectures".
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import RopeSpec
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import Tensors


class GGUFValues(Values):
    """The values of one architecture; keys are given without its name in front."""

    def __init__(self, metadata: Mapping[str, object], architecture: str) -> None:
        super().__init__(metadata, f"{architecture}.", null_is_absent=False)
        self._architecture = architecture

    def sizes(
        self,
        tensors: Tensors,
        *,
        intermediate: str = "feed_forward_length",
        kv_heads: int | None = None,
    ) -> Sizes:
        """intermediate: the key of the feed-forward network's size. kv_heads: None stands for what
        the file says, one number for all layers. Raises ModelFileError."""
        hidden, heads = self.count("embedding_length"), self.count("attention.head_count")
        return Sizes(
            architecture=self._architecture,
            hidden=hidden,
            layers=self.layer_count(tensors),
            heads=heads,
            kv_heads=kv_heads or self.count("attention.head_count_kv", heads),
            head_dim=self.count("attention.key_length", hidden // heads),
            intermediate=self.count(intermediate),
            vocab=_embedding_rows(tensors),
            context_window=self.count("context_length"),
            norm_eps=self.positive("attention.layer_norm_rms_epsilon"),
            tied_head="output.weight" not in tensors,
        )

    def rope(
        self, head_dim: int, theta: float, *, suffix: str = "", factors: str | None = None
    ) -> RopeSpec:
        """theta: the default. suffix: of the key of theta; such a rope is not scaled. factors: the
        tensor of divisors, if there is one. Raises UnsupportedModel unless whole heads are rotated
        and scaling is linear; ModelFileError."""
        dim = self.get("rope.dimension_count", head_dim)
        if dim != head_dim:
            raise UnsupportedModel(f"rotary embedding over {dim} of {head_dim} elements of a head")
        linear = 1.0 if suffix else self._linear()
        return RopeSpec(self.positive(f"rope.freq_base{suffix}", theta), head_dim, linear, factors)

    def _linear(self) -> float:
        """Divisor of positions."""
        scaling = self.get("rope.scaling.type", "none")
        if scaling not in ("none", "linear"):
            raise UnsupportedModel(f"rope scaling type {scaling!r}; supported are none and linear")
        factor = self.positive("rope.scaling.factor", 1.0)
        return factor if scaling == "linear" else 1.0

    def layer_count(self, tensors: Tensors) -> int:
        """A file cannot have more layers than tensors. Raises ModelFileError."""
        layers = self.count("block_count")
        if layers > len(tensors):
            raise ModelFileError(
                f"{self._architecture}.block_count is {layers}; the file has {len(tensors)} tensors"
            )
        return layers


def _embedding_rows(tensors: Tensors) -> int:
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError("there is no tensor token_embd.weight")
    return embedding.shape[0]
