"""What CPU kernels cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

from mlc_llm.backends.features import FEATURES, Feature, refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.spec import AttentionSpec, LayerSpec, ModelSpec

MISSING: frozenset[Feature] = frozenset(
    {
        "experts",
        "biases of experts",
        "networks without a gate",
        "parallel layers",
        "layer norms",
        "learned positions",
    }
)


def check(spec: ModelSpec, kernels: str) -> None:
    """kernels: their name. Raises UnsupportedModel naming the layer and the feature, or a size."""
    refuse_missing(spec, kernels, set(FEATURES) - MISSING)
    for layer in dict.fromkeys(spec.layers):
        _check_layer(spec, layer)


def _check_layer(spec: ModelSpec, layer: LayerSpec) -> None:
    """Raises UnsupportedModel for sizes that vectors or groups of weights do not fit."""
    one, wide = layer.mixer, layer.feed_forward.intermediate
    words = f"hidden {spec.hidden} and feed-forward {wide} (multiples of 32)"
    fits = not (spec.hidden % 32 or wide % 32)
    if isinstance(one, AttentionSpec):
        fits = fits and not (one.head_dim % 16 or one.query_width % 32)
        words = (
            f"head size {one.head_dim} (a multiple of 16), all {one.heads} heads "
            f"{one.query_width}, {words}"
        )
    if not fits:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the CPU kernels: {words}; "
            "use --kernels reference"
        )
