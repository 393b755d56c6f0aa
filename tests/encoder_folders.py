"""Tiny random encoders as Hugging Face folders, with the numbers of their GGUF files."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_encoders import (
    CONTEXT,
    EPS,
    HEADS,
    HIDDEN,
    LAYERS,
    THETA,
    TOKENS,
    VOCABULARY,
    WIDE,
    TinyEncoder,
)
from tiny_folders import Folder, Stored

Floats = npt.NDArray[np.float32]
_BERT = {
    "token_embd": "embeddings.word_embeddings", "token_embd_norm": "embeddings.LayerNorm",
    "token_types": "embeddings.token_type_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "attn_q": "encoder.layer.{i}.attention.self.query",
    "attn_k": "encoder.layer.{i}.attention.self.key",
    "attn_v": "encoder.layer.{i}.attention.self.value",
    "attn_output": "encoder.layer.{i}.attention.output.dense",
    "attn_output_norm": "encoder.layer.{i}.attention.output.LayerNorm",
    "ffn_up": "encoder.layer.{i}.intermediate.dense", "ffn_down": "encoder.layer.{i}.output.dense",
    "layer_output_norm": "encoder.layer.{i}.output.LayerNorm",
}  # fmt: skip
_PAIRS = {
    "bert": {"cls": "bert.pooler.dense", "cls.output": "classifier"},
    "roberta": {"cls": "classifier.dense", "cls.output": "classifier.out_proj"},
    "nomic": {"cls": "nomic_bert.pooler.dense", "cls.output": "classifier"},
}
_FIRST_NOMIC = {
    "token_embd": "embeddings.word_embeddings", "token_embd_norm": "emb_ln",
    "token_types": "embeddings.token_type_embeddings", "attn_qkv": "encoder.layers.{i}.attn.Wqkv",
    "attn_output": "encoder.layers.{i}.attn.out_proj",
    "attn_output_norm": "encoder.layers.{i}.norm1",
    "ffn_up": "encoder.layers.{i}.mlp.fc11", "ffn_gate": "encoder.layers.{i}.mlp.fc12",
    "ffn_down": "encoder.layers.{i}.mlp.fc2", "layer_output_norm": "encoder.layers.{i}.norm2",
}  # fmt: skip
_NOMIC = {
    "token_embd": "embeddings.word_embeddings", "token_embd_norm": "embeddings.LayerNorm",
    "token_types": "embeddings.token_type_embeddings",
    "attn_q": "layers.{i}.self_attn.q_proj", "attn_k": "layers.{i}.self_attn.k_proj",
    "attn_v": "layers.{i}.self_attn.v_proj", "attn_output": "layers.{i}.self_attn.o_proj",
    "attn_output_norm": "layers.{i}.post_attention_layernorm",
    "ffn_up": "layers.{i}.mlp.up_proj", "ffn_gate": "layers.{i}.mlp.gate_proj",
    "ffn_down": "layers.{i}.mlp.down_proj", "layer_output_norm": "layers.{i}.post_mlp_layernorm",
}  # fmt: skip
_PREFIXES = {"bert": "bert", "roberta": "roberta", "nomic": "nomic_bert"}
"""Of the layers of a model with a head."""
FORMS = {"bert": "bert", "roberta": "bert", "nomic": "nomic-bert", "first nomic": "nomic-bert"}
"""Forms of folders -> the architecture of the GGUF file."""
FIRST_NOMIC: dict[str, Any] = {
    "architectures": ["NomicBertModel"], "n_embd": HIDDEN, "n_layer": LAYERS, "n_head": HEADS,
    "n_inner": WIDE, "vocab_size": VOCABULARY, "n_positions": 4 * CONTEXT,
    "max_trained_positions": CONTEXT, "type_vocab_size": 2, "rotary_emb_base": THETA,
    "layer_norm_epsilon": float(np.float32(EPS)), "activation_function": "swiglu",
    "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False, "prenorm": False,
    "qkv_proj_bias": False, "mlp_fc1_bias": False, "mlp_fc2_bias": False,
    "rotary_emb_scale_base": None,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "intermediate_size": WIDE, "vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT,
    "type_vocab_size": 2, "layer_norm_eps": float(np.float32(EPS)),
}  # fmt: skip


_CLASSES = {"bert": "Bert", "roberta": "XLMRoberta", "nomic": "NomicBert"}


def encoder_config(form: str, *, labels: int = 0) -> dict[str, Any]:
    """config.json. labels: scores of a pair."""
    if form == "first nomic":
        return dict(FIRST_NOMIC)
    if form == "nomic":
        rope = {"rope_type": "default", "rope_theta": THETA}
        own = {"hidden_act": "silu", "rope_parameters": rope}
    else:
        own = {"hidden_act": "gelu"}
    name = _CLASSES[form]
    found = {**SIZES, **own, "architectures": [f"{name}Model"]}
    if form == "roberta":
        found |= {"pad_token_id": 1, "max_position_embeddings": CONTEXT + 2}
    if labels:
        found["architectures"] = [f"{name}ForSequenceClassification"]
        found["id2label"] = {str(i): f"LABEL_{i}" for i in range(labels)}
    return found


def folder_of(encoder: TinyEncoder, form: str) -> Folder:
    """With vocab.txt, and the pooling as sentence-transformers write it."""
    names = {"nomic": _NOMIC, "first nomic": _FIRST_NOMIC}.get(form, _BERT)
    names = names | _PAIRS.get(form, {})
    tensors = {}
    for name, values in _weights(encoder, form).items():
        layer, _, inner = name.removeprefix("blk.").partition(".")
        base, _, end = (inner if name.startswith("blk.") else name).rpartition(".")
        new = f"{names[base].format(i=layer)}.{end}"
        has_prefix = encoder.labels and not base.startswith("cls")
        tensors[f"{_PREFIXES[form]}.{new}" if has_prefix else new] = _stored(values)
    config = encoder_config(form, labels=encoder.labels)
    if encoder.types != 2:
        config["type_vocab_size"] = encoder.types
    return Folder(config, tensors, {"vocab.txt": "\n".join(TOKENS), **_tokenizer()})


def pooled(folder: Folder, mode: str) -> Folder:
    """The folder with files of sentence-transformers that ask for `pooling_mode_{mode}`."""
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
        {"type": "sentence_transformers.models.Normalize", "path": "2_Normalize"},
    ]
    folder.texts["modules.json"] = json.dumps(modules)
    folder.texts["1_Pooling/config.json"] = json.dumps({f"pooling_mode_{mode}": True})
    return folder


def _weights(encoder: TinyEncoder, form: str) -> dict[str, Floats]:
    """Of the GGUF file, as the folder has them."""
    found = encoder.weights
    if form == "roberta":
        table = found["position_embd.weight"]
        unused = np.full((2, HIDDEN), 9, np.float32)
        found["position_embd.weight"] = np.concatenate([unused, table])
    if form == "nomic":
        for i in range(LAYERS):
            parts = np.split(found.pop(f"blk.{i}.attn_qkv.weight"), 3)
            found |= {
                f"blk.{i}.attn_{name}.weight": part for name, part in zip("qkv", parts, strict=True)
            }
    return found


def _stored(values: Floats) -> Stored:
    data = np.frombuffer(np.ascontiguousarray(values).tobytes(), np.uint8)
    return Stored("F32", values.shape, data)


def _tokenizer() -> dict[str, str]:
    roles = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    config = {**roles, "tokenizer_class": "BertTokenizer", "do_lower_case": True}
    return {"tokenizer_config.json": json.dumps(config)}
