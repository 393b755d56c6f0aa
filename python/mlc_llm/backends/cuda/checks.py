"""What kernels of a GPU cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

from mlc_llm.backends.cuda.formats import GROUP
from mlc_llm.backends.features import Feature, refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.spec import AttentionSpec, ModelSpec

HAS: frozenset[Feature] = frozenset(
    (
        "score caps",
        "learned attention sinks",
        "biases",
        "attention without a rotary embedding",
        "rotary embeddings of parts of a head",
        "norms over all heads",
        "queries scaled by position",
        "learned factors of layers",
        "networks without a gate",
        "activations other than SiLU and tanh GELU",
        "parallel layers",
        "layers without a network",
        "residual multipliers",
        "layer norms",
        "norms behind sums",
        "learned positions",
        "logit multipliers",
        "logit caps",
    )
)
"""Features that the kernels compute."""
OTHERWISE = "use --device cpu"


def check(spec: ModelSpec) -> None:
    """Raises UnsupportedModel with the layer and the feature, or a size."""
    refuse_missing(spec, "cuda", HAS, OTHERWISE)
    if spec.adapted:
        raise UnsupportedModel(f"the cuda kernels compute no LoRA adapters yet; {OTHERWISE}")
    if spec.medusa is not None:
        raise UnsupportedModel(f"the cuda kernels compute no Medusa heads yet; {OTHERWISE}")
    if spec.eagle is not None:
        raise UnsupportedModel(f"the cuda kernels compute no EAGLE heads yet; {OTHERWISE}")
    for one in dict.fromkeys(spec.attention_layers.values()):
        _check_attention(one)
    widths = {layer.feed_forward.intermediate for layer in spec.layers if layer.has_network}
    if any(width % GROUP for width in (spec.hidden, *widths)):
        raise UnsupportedModel(
            f"sizes of this model are not supported by the cuda kernels: hidden {spec.hidden} and "
            f"feed-forward {' and '.join(map(str, sorted(widths)))} (multiples of {GROUP}); "
            f"{OTHERWISE}"
        )


def _check_attention(spec: AttentionSpec) -> None:
    if spec.head_dim % 8 or spec.query_width % GROUP:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the cuda kernels: head size {spec.head_dim} "
            f"(a multiple of 8), all heads {spec.query_width} (a multiple of {GROUP}); {OTHERWISE}"
        )
