"""StableLM (Bellagente et al. 2024): a Llama with layer norms and a rotation of a part of each
head. In some, both parts of a layer read one norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.gguf_values import LAYER_NORM_EPS, GGUFValues
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sizes import Sizes
from mlc_llm.models.spec import LayerSpec, ModelSpec
from mlc_llm.models.tensor_names import LAYER_NORM_BIASES, LLAMA_NAMES
from mlc_llm.models.weight_plan import Tensors, WeightPlan, plan_weights

THETA, PART = 10_000.0, 0.25
"""Where a file does not say it; PART: how much of a head is rotated."""
HF_NAMES = LLAMA_NAMES | LAYER_NORM_BIASES


def read_gguf(metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan:
    """Converters write `use_parallel_residual` even where it is not so: what holds is whether there
    is a second norm. Raises UnsupportedModel or ModelFileError naming the key or tensor at
    fault."""
    values = GGUFValues(metadata, "stablelm")
    sizes = values.sizes(tensors, eps=LAYER_NORM_EPS)
    parallel = "blk.0.ffn_norm.weight" not in tensors
    has_bias = any(f"blk.0.{name}.bias" in tensors for name in ("attn_q", "attn_qkv"))
    mlp, rope = DenseSpec(sizes.intermediate), values.rope(sizes.head_dim, THETA)
    return plan_weights(_spec(sizes, rope, mlp, parallel, has_bias), tensors)


def read_config(config: Mapping[str, object]) -> ModelSpec:
    """Raises UnsupportedModel or ModelFileError naming the field at fault."""
    values = ConfigValues(config)
    values.refuse_unless("qk_layernorm", False)
    sizes = values.sizes("stablelm", eps="layer_norm_eps")
    mlp = DenseSpec(sizes.intermediate, values.activation())
    parallel = values.flag("use_parallel_residual", False)
    rope, has_bias = values.rope(sizes.head_dim, THETA, PART), values.flag("use_qkv_bias", False)
    return _spec(sizes, rope, mlp, parallel, has_bias)


def _spec(
    sizes: Sizes, rope: RopeSpec, mlp: DenseSpec, parallel: bool, has_bias: bool
) -> ModelSpec:
    """has_bias: that the matrices of queries, keys and values have one."""
    mixer = replace(sizes.attention(), qkv_bias=has_bias)
    layer = LayerSpec(mixer, mlp, parallel=parallel, one_norm=parallel)
    return replace(sizes.model([layer] * sizes.layers, [rope]), norm="layer")
