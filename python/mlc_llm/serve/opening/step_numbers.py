"""How many numbers of a token exist at once in a step, by what a model's layers compute.

What one kind of layer computes between its kernels has other sizes than what another kind does, so
their memory is shared only by chance: it counts once for each kind.
"""

from __future__ import annotations

from mlc_llm.library.state_format import CHUNK
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import ExpertsSpec, FeedForward
from mlc_llm.models.recurrent import Mamba2Spec, Recurrent, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.spec import LayerSpec, ModelSpec

_MIXED = 23
"""Vectors of RWKV-7 beside the hidden state: mixtures, what matrices make of them, and the value of
the first layer, each where another layer cannot take its place."""


def token_numbers(spec: ModelSpec) -> int:
    """Numbers (float32) that a token has in a step, without logits and rotary tables."""
    attention = {_attention(one) for one in spec.attention_layers.values()}
    networks = {_network(layer.feed_forward, spec.hidden) for layer in spec.layers}
    states = max((_recurrent(layer) for layer in spec.layers), default=0)
    by_token = sum(layer.token_input for layer in spec.layers)
    gates = 2 * max((layer.token_input for layer in spec.layers), default=0)
    kinds = sum(attention) + sum(networks) + states
    vectors = 6 if any(layer.post_norms for layer in spec.layers) else 3
    return vectors * spec.hidden + kinds + 2 * by_token + gates


def _attention(spec: AttentionSpec) -> int:
    """The input's matrices, rotated queries, and what the heads give; a gate needs twice that."""
    parts = sum(spec.width_of(part) for part in spec.parts)
    return parts + (4 if spec.gated else 2) * spec.query_width


def _network(spec: FeedForward, hidden: int) -> int:
    """Gate, up and their product. Chosen experts read and give rows of their own."""
    if isinstance(spec, ExpertsSpec):
        chosen = spec.experts_per_token * (3 * spec.intermediate + 2 * hidden)
        shared = 3 * spec.shared_intermediate + (hidden if spec.shared_intermediate else 0)
        return chosen + spec.num_experts + shared
    return (3 if spec.gated else 2) * spec.intermediate + spec.shifted


def _recurrent(layer: LayerSpec) -> int:
    """The input's matrices, what is behind the convolution, what the heads give, and the norm; of
    heads of keys, their vectors where they are normalised, and products of these with a chunk."""
    spec: Recurrent | None = layer.recurrent
    if spec is None:
        return 0
    if isinstance(spec, ShortConvSpec):
        return 4 * spec.width
    if isinstance(spec, Rwkv7Spec):
        return _MIXED * spec.width + 2 * sum(spec.ranks.values())
    if isinstance(spec, Mamba2Spec):
        rows, keys = spec.rows, spec.groups * CHUNK
    else:
        rows, keys = sum(spec.parts.values()), 2 * (spec.keys + spec.key_heads * CHUNK)
    beside = 0 if layer.beside is None else 2 * spec.inner
    return rows + spec.channels + keys + 2 * spec.inner + beside
