"""Tiny GGUF models written again as Hugging Face folders, with the same bytes for each value."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.testing.byte_tokenizer import (
    CHAT_TEMPLATE,
    CONTROL_TOKENS,
    byte_tokenizer_metadata,
)

Bytes = npt.NDArray[np.uint8]
INDEX = "model.safetensors.index.json"
NAMES = {
    "token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj", "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
CONFIG_NAMES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads", "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim", "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "rope.freq_base": "rope_theta",
}  # fmt: skip


@dataclass(frozen=True)
class Stored:
    """A tensor in a safetensors file."""

    kind: str
    shape: tuple[int, ...]
    data: Bytes


@dataclass
class Folder:
    """What stands in a folder before it is written; tests change it."""

    config: dict[str, Any]
    tensors: dict[str, Stored]
    texts: dict[str, str] = field(default_factory=dict)
    """Contents of other files by name."""

    def write(self, path: Path, shards: int = 1) -> Path:
        """Into a new folder, whose path comes back. shards: files of weights."""
        path.mkdir()
        texts = {"config.json": json.dumps(self.config), **self.texts}
        for name, text in texts.items():
            (path / name).parent.mkdir(exist_ok=True)
            (path / name).write_text(text, encoding="utf-8")
        if shards == 1:
            write_safetensors(path / "model.safetensors", self.tensors)
            return path
        parts = [f"model-{i + 1:05d}-of-{shards:05d}.safetensors" for i in range(shards)]
        places = {name: parts[i % shards] for i, name in enumerate(self.tensors)}
        for part in parts:
            own = {name: one for name, one in self.tensors.items() if places[name] == part}
            write_safetensors(path / part, own)
        (path / INDEX).write_text(json.dumps({"weight_map": places}), encoding="utf-8")
        return path


def folder_of(gguf: Path) -> Folder:
    """A Llama of floats as a folder."""
    file = GGUFFile.open(gguf)
    said = {key.removeprefix("llama."): value for key, value in file.metadata.items()}
    config: dict[str, Any] = {new: said[old] for old, new in CONFIG_NAMES.items() if old in said}
    config |= {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": file.tensors["token_embd.weight"].shape[0],
        "tie_word_embeddings": "output.weight" not in file.tensors,
    }
    tensors = {}
    for name, tensor in file.tensors.items():
        data = tensor.data.copy()
        if "attn_q." in name or "attn_k." in name:
            data = halves(data, tensor.shape[0], config["head_dim"])
        tensors[folder_name(name)] = Stored(tensor.kind, tensor.shape, data)
    return Folder(config, tensors, tokenizer_files())


def halves(data: Bytes, rows: int, head_dim: int) -> Bytes:
    """Rows of heads that are paired with their neighbours, paired with the other half."""
    pairs = data.reshape(rows // head_dim, head_dim // 2, 2, -1)
    return np.ascontiguousarray(pairs.transpose(0, 2, 1, 3)).reshape(-1)


def folder_name(name: str) -> str:
    if not name.startswith("blk."):
        return f"{NAMES[name.removesuffix('.weight')]}.weight"
    _, layer, part, end = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{end}"


def tokenizer_files() -> dict[str, str]:
    """The byte tokenizer as tokenizer.json, with its chat template."""
    metadata: Mapping[str, Any] = byte_tokenizer_metadata()
    tokens = metadata["tokenizer.ggml.tokens"]
    added = [
        {"id": tokens.index(text), "content": text, "special": True, "single_word": False,
         "lstrip": False, "rstrip": False, "normalized": False}
        for text in CONTROL_TOKENS
    ]  # fmt: skip
    bytes_of = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {
        "type": "BPE",
        "vocab": {text: i for i, text in enumerate(tokens)},
        "merges": metadata["tokenizer.ggml.merges"],
    }
    spec = {"version": "1.0", "added_tokens": added, "model": model,
            "pre_tokenizer": {**bytes_of, "use_regex": True}, "decoder": bytes_of}  # fmt: skip
    config = {
        "bos_token": tokens[metadata["tokenizer.ggml.bos_token_id"]],
        "eos_token": {"content": tokens[metadata["tokenizer.ggml.eos_token_id"]]},
        "add_bos_token": False,
        "chat_template": CHAT_TEMPLATE,
    }
    return {"tokenizer.json": json.dumps(spec), "tokenizer_config.json": json.dumps(config)}


def write_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Format: https://github.com/huggingface/safetensors. NumPy has no bfloat16 and no float8."""
    header, offset = {}, 0
    for name, one in tensors.items():
        header[name] = {
            "dtype": one.kind,
            "shape": list(one.shape),
            "data_offsets": [offset, offset + one.data.nbytes],
        }
        offset += one.data.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for one in tensors.values():
            file.write(one.data.tobytes())
