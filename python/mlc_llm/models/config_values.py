"""What most architectures read out of a Hugging Face `config.json`.

Source: the configuration classes of Transformers. Version 5 keeps rotary settings in
`rope_parameters`; earlier ones have `rope_theta` and `rope_scaling`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.network_spec import Activation, ExpertsSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.values import MOST_LAYERS, Values
from mlc_llm.models.yarn import Yarn, magnitude

ACTIVATIONS: Mapping[str, Activation] = {
    "silu": "silu",
    "swish": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu": "gelu",
}

FULL, WINDOWED = "full_attention", "sliding_attention"
"""Kinds of layers."""
TRAINED = "original_max_position_embeddings"
"""How long texts of the first training were."""


class ConfigValues(Values):
    """The fields of a `config.json`; null counts as absent."""

    def __init__(
        self, config: Mapping[str, object], defaults: Mapping[str, object] | None = None
    ) -> None:
        """defaults: of fields that are not there; a null that is there stays one, but for
        `rope_parameters`: Transformers takes the default there."""
        given = {k: one for k, one in config.items() if k != "rope_parameters" or one is not None}
        super().__init__({**(defaults or {}), **given}, "", null_is_absent=True)

    def sizes(
        self,
        architecture: str,
        *,
        head_dim: int | None = None,
        tied_head: bool = False,
        intermediate: str = "intermediate_size",
        eps: str = "rms_norm_eps",
        causal: bool = True,
    ) -> Sizes:
        """architecture: its name in specs. head_dim, tied_head: defaults; a head_dim of None stands
        for hidden_size / num_attention_heads. intermediate, eps: the fields of the feed-forward
        network's size, and of the norms. causal: as in `refuse_later_tokens`; false: of an encoder.
        Raises UnsupportedModel, ModelFileError."""
        if causal:
            self.refuse_later_tokens()
        hidden, heads = self.count("hidden_size"), self.count("num_attention_heads")
        return Sizes(
            architecture=architecture,
            hidden=hidden,
            layers=self.count("num_hidden_layers", most=MOST_LAYERS),
            heads=heads,
            kv_heads=self.count("num_key_value_heads", heads),
            head_dim=self.count("head_dim", head_dim or hidden // heads),
            intermediate=self.count(intermediate),
            vocab=self.count("vocab_size"),
            context_window=self.count("max_position_embeddings"),
            norm_eps=self.positive(eps),
            tied_head=self.flag("tie_word_embeddings", tied_head),
        )

    def refuse_later_tokens(self) -> None:
        """Raises UnsupportedModel if tokens see later ones: decoders here are causal."""
        self.refuse_unless("is_causal", True)
        # Of "vision" only tokens of an image see each other.
        self.refuse_unless("use_bidirectional_attention", False, "vision")

    def experts(self, intermediate: int) -> ExpertsSpec:
        """intermediate: the size of one expert. Raises ModelFileError."""
        name = "num_local_experts" if self.has("num_local_experts") else "num_experts"
        return ExpertsSpec(self.count(name), self.count("num_experts_per_tok"), intermediate)

    def activation(self, key: str = "hidden_act") -> Activation:
        """Raises UnsupportedModel."""
        return self.choice(key, ACTIVATIONS)

    def windowed(self, layers: int, every: int) -> list[bool]:
        """Which layers see through a window only. every: if no field says it, all but every so
        many-th. Raises UnsupportedModel, ModelFileError."""
        if not self.has("layer_types"):
            return [(i + 1) % every > 0 for i in range(layers)]
        return [kind == WINDOWED for kind in self.texts("layer_types", layers, (FULL, WINDOWED))]

    def rope(self, head_dim: int, theta: float, part: float | None = None) -> RopeSpec:
        """The one rotary embedding. theta: the default. part: how much of a head is rotated, if the
        fields do not say it; None: all, and it cannot be less. Raises UnsupportedModel,
        ModelFileError."""
        context = self.count("max_position_embeddings")
        base, inner = self.positive("rope_theta", theta), self.rope_fields()
        if inner is None:
            return RopeSpec(base, rotated(self, head_dim, part))
        holder = inner if inner.has("partial_rotary_factor") else self
        return rope_of(inner, rotated(holder, head_dim, part), base, context)

    def rope_fields(self) -> Values | None:
        """The object with the fields of the one rotary embedding, if there is one. Transformers
        lets the older name of it win, and the length of the first training beside it. Raises
        ModelFileError."""
        key = "rope_scaling" if self.get("rope_scaling") else "rope_parameters"
        if not self.get(key):
            return None
        inner = self.part(key)
        return inner.also({TRAINED: self.count(TRAINED)}) if self.has(TRAINED) else inner

    def ropes_by_kind(
        self,
        head_dim: int,
        theta: float,
        local_theta: float,
        local_key: str,
        key: str = "rope_theta",
    ) -> tuple[RopeSpec, RopeSpec]:
        """The rotary embedding of the layers that see everything, then that of those with a window,
        which is not scaled where it has no fields of its own. theta, local_theta: the defaults;
        key, local_key: the fields of both. Raises UnsupportedModel, ModelFileError."""
        base, local_base = self.positive(key, theta), self.positive(local_key, local_theta)
        if not self.has("rope_parameters"):
            return self.rope(head_dim, base), RopeSpec(local_base, head_dim)
        both, context = self.part("rope_parameters"), self.count("max_position_embeddings")
        rotated(self, head_dim, None)
        whole, local = both.part(FULL), both.part(WINDOWED)
        if self.has("rope_scaling"):  # Transformers adds it to the first one
            whole = whole.also(self.mapping("rope_scaling"))
        return (
            rope_of(whole, rotated(whole, head_dim, None), base, context),
            rope_of(local, rotated(local, head_dim, None), local_base, context),
        )


def rotated(values: Values, head_dim: int, part: float | None) -> int:
    """How many elements of a head are rotated. part: as in `ConfigValues.rope`."""
    if part is None:
        values.refuse_unless("partial_rotary_factor", 1.0)
        return head_dim
    return int(head_dim * values.positive("partial_rotary_factor", part))


def rope_of(values: Values, dim: int, theta: float, context: int) -> RopeSpec:
    """A rotary embedding from its own fields. dim: elements of a head that are rotated. theta,
    context: where the fields have none; no text is longer. A dynamic one (NTK) changes for longer
    texts alone. Raises UnsupportedModel, ModelFileError."""
    base = values.positive("rope_theta", theta)
    name = "rope_type" if values.has("rope_type") else "type"
    kinds = ("default", "dynamic", "linear", "llama3", "yarn", "longrope")
    kind = values.choice(name, {k: k for k in kinds}, "default")
    if kind == "longrope":
        return longrope_of(values, RopeSpec(base, dim), context)
    if kind == "linear":
        return RopeSpec(base, dim, linear=values.positive("factor"))
    if kind == "llama3":
        return RopeSpec(base, dim, factors=llama3_factors(values, dim, base, context))
    if kind == "yarn":
        return yarn_of(values, context).rope(base, dim)
    return RopeSpec(base, dim)


def llama3_factors(values: Values, head_dim: int, theta: float, context: int) -> tuple[float, ...]:
    """Divisors of the frequencies (Llama 3.1): 1 for short waves, `factor` for long ones, a mean in
    between; a wave's length is measured against the context of the first training. context: where
    the fields do not say that."""
    factor, context = values.positive("factor"), values.count(TRAINED, context)
    low, high = values.positive("low_freq_factor"), values.positive("high_freq_factor")
    values.check("high_freq_factor", high > low, "more than low_freq_factor")
    found = []
    for i in range(0, head_dim, 2):
        turns = context / (2 * math.pi * theta ** (i / head_dim))  # within that context
        short = min(max((turns - low) / (high - low), 0.0), 1.0)
        found.append(1 / ((1 - short) / factor + short))
    return tuple(found)


def longrope_of(values: Values, rope: RopeSpec, context: int) -> RopeSpec:
    """The rotary embedding with the divisors of LongRoPE. context: what texts may have, and of the
    first training too where the fields do not say it. Raises ModelFileError."""
    trained = values.count(TRAINED, context)
    values.check(TRAINED, trained > 1, "a whole number above 1")
    factor = values.positive("factor", context / trained)
    magnitude = math.sqrt(1 + math.log(factor) / math.log(trained)) if factor > 1 else 1.0
    return replace(
        rope,
        magnitude=values.positive("attention_factor", magnitude),
        factors=values.positives("short_factor", rope.dim // 2),
        long_factors=values.positives("long_factor", rope.dim // 2),
        long_after=trained,
    )


def yarn_of(values: Values, context: int) -> Yarn:
    """context: of the first training, where the fields do not say it. Raises ModelFileError."""
    factor = values.positive("factor")
    found = magnitude(factor)
    if values.get("mscale") and values.get("mscale_all_dim"):
        mine, all_dims = values.positive("mscale"), values.positive("mscale_all_dim")
        found = magnitude(factor, mine) / magnitude(factor, all_dims)
    return Yarn(
        factor,
        values.count(TRAINED, context),
        values.positive("attention_factor", found),
        values.positive("beta_fast", Yarn.fast),
        values.positive("beta_slow", Yarn.slow),
        values.flag("truncate", True),
    )
