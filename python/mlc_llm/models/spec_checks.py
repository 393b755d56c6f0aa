"""Numbers of a spec that contradict each other, whatever file they come from."""

from __future__ import annotations

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.recurrent import CONVOLVING, GatedDeltaSpec, Mamba2Spec
from mlc_llm.models.spec import LayerSpec, ModelSpec


def check_sizes(spec: ModelSpec) -> None:
    """Raises ModelFileError naming the layer and its numbers; UnsupportedModel."""
    if 0 < spec.learned_positions < spec.context_window:
        raise ModelFileError(
            f"{spec.learned_positions} learned positions for {spec.context_window} tokens"
        )
    for layer in dict.fromkeys(spec.layers):
        if _is_short(layer):
            raise UnsupportedModel(f"layer {spec.layers.index(layer)}: a convolution over 1 token")
        words = _wrong_heads(layer) or _wrong_rope(spec, layer) or _wrong_experts(layer)
        words = words or _wrong_groups(layer)
        if words:
            raise ModelFileError(f"layer {spec.layers.index(layer)}: {words}")


def _is_short(layer: LayerSpec) -> bool:
    """Whether a convolution of the layer has no state."""
    one = layer.mixers[-1]
    return isinstance(one, CONVOLVING) and one.kernel < 2


def _wrong_heads(layer: LayerSpec) -> str | None:
    one = layer.mixer
    if isinstance(one, AttentionSpec) and one.heads % one.kv_heads:
        return f"{one.heads} heads cannot share {one.kv_heads} heads of keys and values evenly"
    return None


def _wrong_groups(layer: LayerSpec) -> str | None:
    one = layer.mixers[-1]
    if isinstance(one, Mamba2Spec) and one.heads % one.groups:
        return f"{one.heads} heads of a state space cannot share {one.groups} groups evenly"
    if isinstance(one, GatedDeltaSpec) and one.heads % one.key_heads:
        return f"{one.heads} heads of values cannot share {one.key_heads} heads of keys evenly"
    return None


def _wrong_rope(spec: ModelSpec, layer: LayerSpec) -> str | None:
    one = layer.mixer
    if not isinstance(one, AttentionSpec) or one.rope is None:
        return None
    dim = spec.ropes[one.rope].dim
    if dim % 2 or not 0 < dim <= one.head_dim:
        return f"{dim} of {one.head_dim} elements of a head cannot be rotated"
    return None


def _wrong_experts(layer: LayerSpec) -> str | None:
    one = layer.feed_forward
    if isinstance(one, ExpertsSpec) and one.experts_per_token > one.num_experts:
        return f"{one.experts_per_token} experts a token, of {one.num_experts}"
    return None
