"""What CPU kernels cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

import math

from mlc_llm.backends.cpu.formats import format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.features import FEATURES, Feature, refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec
from mlc_llm.models.spec import LayerSpec, ModelSpec

MISSING: frozenset[Feature] = frozenset()
"""Features that no CPU kernel computes yet."""
LARGEST_STACK = 2**31 - 1
"""Words of a table, or of the matrices of all experts together: kernels count them in 32 bits."""


def check(spec: ModelSpec, kernels: str) -> None:
    """kernels: their name. Raises UnsupportedModel naming the layer and the feature, or a size."""
    refuse_missing(spec, kernels, set(FEATURES) - MISSING)
    for layer in dict.fromkeys(spec.layers):
        _check_layer(spec, layer)
    for name, columns in (("embedding", spec.hidden), ("token_table", spec.token_inputs)):
        _check_table(spec, name, columns)


def _check_table(spec: ModelSpec, name: str, columns: int) -> None:
    """Raises UnsupportedModel if a table of tokens is larger than kernels can count."""
    kind = spec.kinds.get(name)
    if kind is None:  # the spec is of no file yet, or has no such table
        return
    shape, _ = tensor_shape(format_of_kind(kind, half=False), padded_rows(spec.vocab), columns)
    if math.prod(shape) > LARGEST_STACK:
        raise UnsupportedModel(
            f"{name}: {spec.vocab} x {columns} values ({kind}) are more than the CPU kernels can "
            "count; quantise them, with --quantization q8_0 for example"
        )


def _check_layer(spec: ModelSpec, layer: LayerSpec) -> None:
    """Raises UnsupportedModel for sizes that vectors or groups of weights do not fit."""
    network = layer.feed_forward
    widths, sizes = [network.intermediate, layer.token_input], ""
    if isinstance(network, ExpertsSpec):
        widths.append(network.shared_intermediate)
        _check_stacks(spec, spec.layers.index(layer), network)
    fits = not any(size % 32 for size in (spec.hidden, *widths))
    for one in layer.mixers:
        if isinstance(one, AttentionSpec):
            fits = fits and not (one.head_dim % 16 or one.query_width % 32)
            sizes += f"head size {one.head_dim} (a multiple of 16), all heads {one.query_width}, "
        if isinstance(one, Mamba2Spec):
            fits = fits and not (one.state % 16 or one.inner % (32 * one.groups))
            fits = fits and not one.head_dim % 2
            group = one.inner // one.groups
            sizes += f"state {one.state} (a multiple of 16), heads {one.head_dim} (even), "
            sizes += f"heads of a group {group}, "
        if isinstance(one, GatedDeltaSpec):
            fits = fits and not (one.key_dim % 8 or one.head_dim % 8 or one.inner % 32)
            fits = fits and not one.channels % 16
            sizes += f"heads of keys {one.key_dim} and of values {one.head_dim} (multiples of 8), "
        if isinstance(one, Rwkv7Spec):
            ranks = ", ".join(map(str, one.ranks.values()))
            fits = fits and not (one.head_dim % 8 or any(rank % 32 for rank in one.ranks.values()))
            sizes += f"heads {one.head_dim} (a multiple of 8), ranks {ranks} (multiples of 32), "
    if not fits:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the CPU kernels: {sizes}"
            f"hidden {spec.hidden} and feed-forward {' and '.join(map(str, filter(None, widths)))} "
            "(multiples of 32); use --kernels reference"
        )


def _check_stacks(spec: ModelSpec, layer: int, one: ExpertsSpec) -> None:
    """Raises UnsupportedModel if the matrices of all experts are larger than kernels can count."""
    for name in ("gate", "up", "down"):
        kind = spec.kinds.get(f"layers.{layer}.experts.{name}")
        if kind is None:  # the spec is of no file yet
            continue
        rows, columns = one.intermediate, spec.hidden
        rows, columns = (columns, rows) if name == "down" else (rows, columns)
        shape, _ = tensor_shape(format_of_kind(kind, half=False), padded_rows(rows), columns)
        if one.num_experts * math.prod(shape) > LARGEST_STACK:
            raise UnsupportedModel(
                f"layer {layer}: {one.num_experts} experts of {rows} x {columns} ({kind}, {name}) "
                "are more than the CPU kernels can count; use --kernels reference"
            )
