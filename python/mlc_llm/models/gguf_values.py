"""What most architectures read out of GGUF metadata.

Source: the GGUF specification (ggml, docs/gguf.md), section "Architectures".
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import Tensors
from mlc_llm.models.yarn import Yarn, magnitude

LAYER_NORM_EPS = "attention.layer_norm_epsilon"
FACTOR, OLD_FACTOR = "rope.scaling.factor", "rope.scale_linear"


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
        eps: str = "attention.layer_norm_rms_epsilon",
        wide: int | None = None,
        causal: bool = True,
    ) -> Sizes:
        """intermediate, eps: the keys of the feed-forward network's size, which is `wide` if that
        is given, and of the norms. kv_heads: None stands for what the file says, one number for all
        layers. causal: whether tokens do not see later ones, where the file says it. Raises
        UnsupportedModel, ModelFileError."""
        self.refuse_unless("attention.causal", causal)
        hidden, heads = self.count("embedding_length"), self.count("attention.head_count")
        return Sizes(
            architecture=self._architecture,
            hidden=hidden,
            layers=self.layer_count(tensors),
            heads=heads,
            kv_heads=kv_heads or self.count("attention.head_count_kv", heads),
            head_dim=self.count("attention.key_length", hidden // heads),
            intermediate=wide or self.count(intermediate),
            vocab=self.vocab(tensors),
            context_window=self.count("context_length"),
            norm_eps=self.positive(eps),
            tied_head="output.weight" not in tensors,
        )

    def experts(self, intermediate: int) -> ExpertsSpec:
        """intermediate: the size of one expert. Raises ModelFileError; UnsupportedModel for experts
        that are chosen by groups."""
        self.refuse_unless("expert_group_count", 0, 1)
        chosen = self.count("expert_used_count")
        return ExpertsSpec(self.count("expert_count"), chosen, intermediate)

    def rope(
        self,
        head_dim: int,
        theta: float,
        *,
        suffix: str = "",
        factors: str | None = None,
        truncate: bool = True,
    ) -> RopeSpec:
        """theta: the default. suffix: of the key of theta; such a rope is not scaled. factors: the
        tensor of divisors, if there is one. truncate: as in `Yarn`; no key says it. A file that
        names no type of scaling has linear scaling, as in llama.cpp. Raises UnsupportedModel unless
        scaling is linear or YaRN; ModelFileError."""
        dim = self.count("rope.dimension_count", head_dim)
        dim = self.count(f"rope.dimension_count{suffix}", dim)
        base = self.positive(f"rope.freq_base{suffix}", theta)
        kind = "none" if suffix else self.get("rope.scaling.type", "linear")
        if kind == "yarn" and factors is None:
            return self._yarn(truncate).rope(base, dim)
        grown = 1.0 if suffix else self.positive("rope.scaling.attn_factor", 1.0)
        return RopeSpec(base, dim, self._linear(kind), factors, grown)

    def refuse_local_rope(self, rope: RopeSpec) -> None:
        """For models whose layers with a window rotate as the others do. Raises UnsupportedModel if
        the file says otherwise."""
        self.refuse_unless("rope.freq_base_swa", rope.theta)
        self.refuse_unless("rope.dimension_count_swa", rope.dim)

    def _linear(self, kind: object) -> float:
        """Divisor of positions. A factor of 0 means that there is none."""
        if kind not in ("none", "linear"):
            raise UnsupportedModel(f"rope scaling type {kind!r}; supported are none and linear")
        factor = self.cap(self._factor_key)
        return 1.0 if kind == "none" or factor is None else factor

    @property
    def _factor_key(self) -> str:
        """The key of the factor. Older files have another name for it."""
        return FACTOR if self.has(FACTOR) or not self.has(OLD_FACTOR) else OLD_FACTOR

    def _yarn(self, truncate: bool) -> Yarn:
        """A file that gives no factor of rotated elements has the paper's, divided by that of the
        share in its `yarn_log_multiplier`."""
        self.refuse_unless("rope.scaling.yarn_ext_factor", 1.0)
        factor = self.positive(self._factor_key)
        part = self.get("rope.scaling.yarn_log_multiplier", 0.0)
        shared = magnitude(factor, self.positive("rope.scaling.yarn_log_multiplier")) if part else 1
        found = self.positive("rope.scaling.yarn_attn_factor", magnitude(factor) / shared)
        return Yarn(
            factor,
            self.count("rope.scaling.original_context_length", self.count("context_length")),
            found * self.positive("rope.scaling.attn_factor", 1.0),
            self.positive("rope.scaling.yarn_beta_fast", Yarn.fast),
            self.positive("rope.scaling.yarn_beta_slow", Yarn.slow),
            truncate,
        )

    def by_layer(self, key: str, layers: int) -> tuple[int, ...]:
        """One number for all layers, or one for each; above 0. Raises ModelFileError."""
        if not isinstance(self.get(key), list):
            return (self.count(key),) * layers
        found = self.numbers(key, layers)
        self.check(key, 0 not in found, "numbers above 0")
        return found

    def windowed(self, layers: int, every: int) -> list[bool]:
        """Which layers see through a window only. every: if the file does not say it, all but every
        so many-th. Raises ModelFileError."""
        key = "attention.sliding_window_pattern"
        if isinstance(self.get(key), list):
            return self.flags(key, layers)
        every = self.count(key, every)
        return [(i + 1) % every > 0 for i in range(layers)]

    def layer_count(self, tensors: Tensors) -> int:
        """A file cannot have more layers than tensors. Raises ModelFileError."""
        layers = self.count("block_count")
        if layers > len(tensors):
            raise ModelFileError(
                f"{self._architecture}.block_count is {layers}; the file has {len(tensors)} tensors"
            )
        return layers

    def vocab(self, tensors: Tensors) -> int:
        """Rows of the embedding. Raises ModelFileError."""
        embedding = tensors.get("token_embd.weight")
        if embedding is None:
            raise ModelFileError("there is no tensor token_embd.weight")
        return embedding.shape[0]
