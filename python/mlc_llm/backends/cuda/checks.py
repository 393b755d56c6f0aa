"""What kernels of a GPU cannot compute is refused here, before anything is packed or compiled."""

from __future__ import annotations

import math
from collections.abc import Sequence

from mlc_llm.backends.cuda.formats import GROUP, format_of_kind, padded_rows, tensor_shape
from mlc_llm.backends.features import Feature, refuse_missing
from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec
from mlc_llm.models.spec import LayerSpec, ModelSpec

HAS: frozenset[Feature] = frozenset(
    (
        "score caps",
        "learned attention sinks",
        "biases",
        "attention without a rotary embedding",
        "rotary embeddings of parts of a head",
        "norms over all heads",
        "queries scaled by position",
        "norms of values",
        "values that are keys",
        "keys and values of another layer",
        "learned factors of layers",
        "inputs of layers by token",
        "experts",
        "biases of experts",
        "experts chosen by sigmoids",
        "gates of shared experts",
        "networks without a gate",
        "activations other than SiLU and tanh GELU",
        "parallel layers",
        "short convolutions",
        "state spaces",
        "gated delta rules",
        "time mixing of RWKV-7",
        "networks that read the token before",
        "norms of embeddings",
        "gates of attention",
        "mixers side by side",
        "layers without a network",
        "no attention at all",
        "residual multipliers",
        "layer norms",
        "norms behind sums",
        "encoders",
        "windows on both sides",
        "learned positions",
        "towers of images",
        "images",
        "logit multipliers",
        "logit caps",
    )
)
"""Features that the kernels compute."""
OTHERWISE = "use --device cpu"
LARGEST = 2**31 - 1
"""Words of a matrix, or of those of all experts together: kernels count them in 32 bits."""


def check(spec: ModelSpec, kv_dtype: str = "float16") -> None:
    """Raises UnsupportedModel with the layer and the feature, or a size. kv_dtype: of the pages."""
    refuse_missing(spec, "cuda", HAS, OTHERWISE)
    if spec.medusa is not None and spec.hidden % GROUP:
        raise _odd_sizes([f"hidden {spec.hidden}"])
    if spec.encoder is not None:
        _check_projections(spec.encoder.projections)
    if spec.eagle is not None and kv_dtype == "int8":
        words = "the cuda kernels keep the vectors of an EAGLE head in no pages of int8"
        raise UnsupportedModel(f"{words}; leave kv_cache_dtype out, or {OTHERWISE}")
    for one in dict.fromkeys(spec.attention_layers.values()):
        _check_attention(one)
    for layer in dict.fromkeys(spec.layers):
        _check_layer(spec, layer)


def _check_layer(spec: ModelSpec, layer: LayerSpec) -> None:
    network = layer.feed_forward
    sizes = {"hidden": spec.hidden, "feed-forward": network.intermediate}
    if isinstance(network, ExpertsSpec):
        sizes["shared feed-forward"] = network.shared_intermediate
        _check_stacks(spec, network)
    sizes["inputs by token"] = layer.token_input
    for one in layer.mixers:
        if isinstance(one, (Mamba2Spec, GatedDeltaSpec)):
            sizes["states"] = one.inner
        if isinstance(one, Rwkv7Spec):
            sizes |= {f"rank of {letter}": rank for letter, rank in one.ranks.items()}
    if spec.eagle is not None:
        sizes["network of the draft head"] = spec.eagle.network.intermediate
    wrong = [f"{name} {size}" for name, size in sizes.items() if size % GROUP]
    if wrong:
        raise _odd_sizes(wrong)


def _check_projections(rows: Sequence[int]) -> None:
    """Of the vector of a text: all but the last are read by the next one."""
    if wrong := [f"projection {size}" for size in rows[:-1] if size % GROUP]:
        raise _odd_sizes(wrong)


def _odd_sizes(wrong: Sequence[str]) -> UnsupportedModel:
    """wrong: names and sizes."""
    return UnsupportedModel(
        f"sizes of this model are not supported by the cuda kernels: {' and '.join(wrong)} "
        f"(multiples of {GROUP}); {OTHERWISE}"
    )


def _check_stacks(spec: ModelSpec, network: ExpertsSpec) -> None:
    """The matrices of all experts of a layer together."""
    number = next(i for i, one in enumerate(spec.layers) if one.feed_forward == network)
    shapes = {
        "gate": (network.intermediate, spec.hidden),
        "down": (spec.hidden, network.intermediate),
    }
    for name, (rows, columns) in shapes.items():
        kind = spec.kinds.get(f"layers.{number}.experts.{name}")
        if kind is None or columns % GROUP:
            continue
        shape, _ = tensor_shape(format_of_kind(kind), padded_rows(rows), columns)
        if network.num_experts * math.prod(shape) > LARGEST:
            raise UnsupportedModel(
                f"layer {number}: the matrices of all experts ({kind}) are more than the cuda "
                f"kernels can count; {OTHERWISE}"
            )


def _check_attention(spec: AttentionSpec) -> None:
    if spec.head_dim % 8 or spec.query_width % GROUP or spec.head_dim > 512:
        raise UnsupportedModel(
            f"sizes of this model are not supported by the cuda kernels: head size {spec.head_dim} "
            f"(a multiple of 8 up to 512), all heads {spec.query_width} (a multiple of {GROUP}); "
            f"{OTHERWISE}"
        )
