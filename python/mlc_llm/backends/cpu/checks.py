"""What CPU kernels cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

from mlc_llm.backends.features import FEATURES, Feature, refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.spec import AttentionSpec, LayerSpec, ModelSpec

MISSING: frozenset[Feature] = frozenset(
    {
        "gates of shared experts",
        "norms of values",
        "values that are keys",
        "keys and values of another layer",
        "learned factors of layers",
        "inputs of layers by token",
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
    sizes, fits = "", not (spec.hidden % 32 or wide % 32)
    if isinstance(one, AttentionSpec):
        fits = fits and not (one.head_dim % 16 or one.query_width % 32)
        sizes = f"head size {one.head_dim} (a multiple of 16), all heads {one.query_width}, "
    if not fits:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the CPU kernels: {sizes}"
            f"hidden {spec.hidden} and feed-forward {wide} (multiples of 32); "
            "use --kernels reference"
        )
