"""What CPU kernels cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

from mlc_llm.backends.features import refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.spec import AttentionSpec, LayerSpec, ModelSpec


def check(spec: ModelSpec, kernels: str) -> None:
    """kernels: their name. Raises UnsupportedModel naming the layer and the feature, or a size."""
    refuse_missing(spec, kernels)
    for layer in dict.fromkeys(spec.layers):
        _check_layer(spec, layer)


def _check_layer(spec: ModelSpec, layer: LayerSpec) -> None:
    """Raises UnsupportedModel for sizes that vectors or groups of weights do not fit."""
    one, wide = layer.mixer, layer.feed_forward.intermediate
    assert isinstance(one, AttentionSpec), "refused before"
    if one.head_dim % 16 or spec.hidden % 32 or wide % 32:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the CPU kernels: head size {one.head_dim} "
            f"(a multiple of 16), hidden {spec.hidden} and feed-forward {wide} (multiples of 32); "
            "use --kernels reference"
        )
