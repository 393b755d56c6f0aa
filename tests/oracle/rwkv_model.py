"""A random small RWKV-7, which Transformers lacks: its formulas in float64 (`rwkv7_reference.py`),
and the files that others make of it."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from rwkv7_reference import HIDDEN, LAYERS, RANKS, WIDE, logits, tensors_of
from safetensors.numpy import save_file

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

PARTS = "rwkvag"
"""Of the mixtures, in the order of GGUF's tensor."""
_NAMES = {
    "attn_norm_2": "ffn_norm", "time_mix_ln": "attn.g_norm", "attn_norm": "attn_norm",
    "time_mix_receptance": "attn.r_proj", "time_mix_key": "attn.k_proj",
    "time_mix_value": "attn.v_proj", "time_mix_output": "attn.o_proj",
    "channel_mix_key": "ffn.key", "channel_mix_value": "ffn.value",
}  # fmt: skip
_VECTORS = {
    "channel_mix_lerp_k": "ffn.x_k", "k_k": "attn.k_k", "k_a": "attn.k_a", "r_k": "attn.r_k",
}  # fmt: skip
_OWN = {
    "token_embd.weight": "model.embeddings.weight", "output.weight": "lm_head.weight",
    "output_norm.weight": "model.norm.weight", "output_norm.bias": "model.norm.bias",
    "token_embd_norm.weight": "model.layers.0.pre_norm.weight",
    "token_embd_norm.bias": "model.layers.0.pre_norm.bias",
}  # fmt: skip


class RandomRwkv7:
    """As a model of Transformers, as far as the oracle asks."""

    def __init__(self, seed: int, head_dim: int = 64) -> None:
        self.head_dim, self.tensors = head_dim, tensors_of(head_dim, seed)
        self.config = SimpleNamespace(model_type="rwkv7")

    def __call__(self, tokens: Any) -> Any:
        found = [logits(self.tensors, row.tolist(), self.head_dim) for row in tokens]
        return SimpleNamespace(logits=torch.tensor(np.array(found)))

    def save_pretrained(self, folder: Path) -> None:
        """As the library flash-linear-attention writes it."""
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "architectures": ["RWKV7ForCausalLM"], "model_type": "rwkv7", "hidden_size": HIDDEN,
            "hidden_ratio": WIDE / HIDDEN, "intermediate_size": WIDE, "head_dim": self.head_dim,
            "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY_SIZE, "norm_eps": 1e-5,
            "decay_low_rank_dim": RANKS["w"], "a_low_rank_dim": RANKS["a"],
            "v_low_rank_dim": RANKS["v"], "gate_low_rank_dim": RANKS["g"], "norm_first": True,
            "norm_bias": True, "hidden_act": "sqrelu", "tie_word_embeddings": False, "attn": None,
            "value_dim": [HIDDEN] * LAYERS, "max_position_embeddings": 2048,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        weights: dict[str, Any] = {}
        for name, values in self.tensors.items():
            weights |= self._of_folder(name, values)
        save_file(weights, str(folder / "model.safetensors"))

    def _of_folder(self, name: str, values: Any) -> dict[str, Any]:
        if name in _OWN:
            return {_OWN[name]: values}
        _, i, rest = name.split(".", 2)
        part, end = rest.rsplit(".", 1)
        start = f"model.layers.{i}."
        if part == "time_mix_lerp_fused":
            rows = zip(PARTS, values, strict=True)
            return {f"{start}attn.x_{letter}": row.copy() for letter, row in rows}
        short = part.removeprefix("time_mix_")
        if i == "0" and short in ("v0", "v1", "v2"):
            return {}
        if part in _NAMES:
            return {f"{start}{_NAMES[part]}.{end}": values}
        if short in _VECTORS:
            shape = (-1, self.head_dim) if short == "r_k" else (-1,)
            return {start + _VECTORS[short]: values.reshape(shape)}
        end = {"0": "2.bias", "1": "0.weight", "2": "2.weight"}[short[1]]
        return {f"{start}attn.{short[0]}_lora.lora.{end}": values}

    def save_author(self, path: Path) -> None:
        """As the package `rwkv` of the author reads it. path: without its ending."""
        made = {"emb.weight": self.tensors["token_embd.weight"]}
        for old, new in (("token_embd_norm", "blocks.0.ln0"), ("output_norm", "ln_out")):
            for end in ("weight", "bias"):
                made[f"{new}.{end}"] = self.tensors[f"{old}.{end}"]
        made["head.weight"] = self.tensors["output.weight"]
        for name, values in self.tensors.items():
            if name.startswith("blk."):
                made |= self._of_author(name, values)
        torch.save({name: torch.tensor(one) for name, one in made.items()}, f"{path}.pth")

    def _of_author(self, name: str, values: Any) -> dict[str, Any]:
        _, i, rest = name.split(".", 2)
        part, end = rest.rsplit(".", 1)
        start = f"blocks.{i}."
        norms = {"attn_norm": "ln1", "attn_norm_2": "ln2", "time_mix_ln": "att.ln_x"}
        if part in norms:
            return {f"{start}{norms[part]}.{end}": values}
        if part == "time_mix_lerp_fused":
            rows = zip(PARTS, values, strict=True)
            return {f"{start}att.x_{letter}": row.reshape(-1).copy() for letter, row in rows}
        half = "ffn" if part.startswith("channel_mix_") else "att"
        short = part.removeprefix("channel_mix_").removeprefix("time_mix_")
        if short in ("receptance", "key", "value", "output"):
            return {f"{start}{half}.{short}.weight": values}
        if short == "r_k":
            values = values.reshape(-1, self.head_dim)
        elif values.ndim == 2:
            values = values.T.copy()
        return {f"{start}{half}.{'x_k' if short == 'lerp_k' else short}": values}
