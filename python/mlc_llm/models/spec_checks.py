"""Numbers of a spec that contradict each other, whatever file they come from."""

from __future__ import annotations

from mlc_llm.errors import ModelFileError
from mlc_llm.models.spec import ExpertsSpec, LayerSpec, ModelSpec


def check_sizes(spec: ModelSpec) -> None:
    """Raises ModelFileError naming the layer and its numbers."""
    for layer in dict.fromkeys(spec.layers):
        words = _wrong_heads(layer) or _wrong_experts(layer)
        if words:
            raise ModelFileError(f"layer {spec.layers.index(layer)}: {words}")


def _wrong_heads(layer: LayerSpec) -> str | None:
    heads, kv_heads = layer.mixer.heads, layer.mixer.kv_heads
    if heads % kv_heads:
        return f"{heads} heads cannot share {kv_heads} heads of keys and values evenly"
    return None


def _wrong_experts(layer: LayerSpec) -> str | None:
    one = layer.feed_forward
    if isinstance(one, ExpertsSpec) and one.experts_per_token > one.num_experts:
        return f"{one.experts_per_token} experts a token, of {one.num_experts}"
    return None
