"""A random Transformers model as a GGUF file of float32 tensors, named as converters do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

LAYER_NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps", "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
}  # fmt: skip
LFM2_NAMES = {
    "self_attn.out_proj": "attn_output", "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm", "conv.conv": "shortconv.conv",
    "conv.in_proj": "shortconv.in_proj", "conv.out_proj": "shortconv.out_proj",
    "feed_forward.w1": "ffn_gate", "feed_forward.w2": "ffn_down", "feed_forward.w3": "ffn_up",
    "operator_norm": "attn_norm", "ffn_norm": "ffn_norm",
}  # fmt: skip
NORMS = {"post_attention_layernorm": "ffn_norm"}
GEMMA_NORMS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
MORE_NAMES = {"gemma3": GEMMA_NORMS, "lfm2": LFM2_NAMES}
OUTER = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "model.embedding_norm": "token_embd_norm",
}  # fmt: skip


def write_model(path: Path, architecture: str, model: Any, more: dict[str, Any]) -> None:
    """more: metadata of this architecture beyond what all have, without its name in front."""
    config = model.config
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    norm_eps = "norm_eps" if architecture == "lfm2" else "rms_norm_eps"
    own = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": getattr(config, norm_eps),
    }
    metadata = {f"{architecture}.{key}": value for key, value in (own | more).items()}
    tensors = {
        gguf_name(name, architecture): TensorData.quantized(values, "F32")
        for name, values in weights_of(model, architecture).items()
    }
    general = {"general.architecture": architecture, "general.name": "random"}
    write_gguf(path, {**general, **metadata, **byte_tokenizer_metadata()}, tensors)


def weights_of(model: Any, architecture: str) -> dict[str, Any]:
    """By Transformers' names, as converters change them."""
    found = {}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        values = tensor.detach().float().numpy()
        if architecture == "gemma3" and "norm" in name:
            values = values + 1
        if architecture == "llama" and ("q_proj" in name or "k_proj" in name):
            values = interleaved(values, model.config.head_dim)
        if name.endswith("conv.conv.weight"):
            values = values.squeeze(1)
        if name.endswith("experts.gate_up_proj"):  # rows of `gate`, then rows of `up`
            gate, up = np.split(values, 2, axis=1)
            prefix = name.removesuffix("gate_up_proj")
            found |= {f"{prefix}gate_proj": gate, f"{prefix}up_proj": up}
        else:
            found[name] = values
    return {name: np.ascontiguousarray(values, np.float32) for name, values in found.items()}


def interleaved(rows: Any, head_dim: int) -> Any:
    """The two halves of each head's rows, or of its part of a vector, as neighbouring pairs."""
    halves = rows.reshape(-1, 2, head_dim // 2, rows[0].size)
    return halves.transpose(0, 2, 1, 3).reshape(rows.shape)


def gguf_name(name: str, architecture: str) -> str:
    end = "bias" if name.endswith(".bias") else "weight"
    base = name.removesuffix(f".{end}")
    if base in OUTER:
        return f"{OUTER[base]}.{end}"
    _, _, layer, part = base.split(".", 3)
    names = LAYER_NAMES | MORE_NAMES.get(architecture, NORMS)
    return f"blk.{layer}.{names[part]}.{end}"
