"""LoRA adapters of tiny Llamas, as PEFT folders and as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from mlc_llm.testing.gguf_writer import TensorData, write_gguf
from mlc_llm.testing.tiny_model import TinyShape, tensor_sizes

Floats = npt.NDArray[np.float32]
MODULES = {
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}  # fmt: skip
ALL = tuple(MODULES)
RANK, ALPHA = 4, 6.0


class Pair(NamedTuple):
    """Factors in the order of rows of Hugging Face folders."""

    down: Floats
    up: Floats


def random_pairs(
    shape: TinyShape,
    seed: int = 0,
    rank: int = RANK,
    targets: tuple[str, ...] = ALL,
    strength: float = 1.0,
) -> dict[str, Pair]:
    """Factors by GGUF's names of the matrices, as large as the matrices themselves."""
    rng = np.random.default_rng(seed)
    pairs = {}
    for name, sizes in tensor_sizes(shape).items():
        if name.split(".")[-2] not in targets or not name.startswith("blk."):
            continue
        rows, columns = sizes
        down = rng.standard_normal((rank, columns)) / np.sqrt(columns)
        up = rng.standard_normal((rows, rank)) * strength / np.sqrt(rank)
        pairs[name] = Pair(down.astype(np.float32), up.astype(np.float32))
    return pairs


def module_of(name: str) -> str:
    """The module of a Hugging Face model, by GGUF's name of its matrix."""
    _, layer, part, _ = name.split(".")
    return f"model.layers.{layer}.{MODULES[part]}"


def config_of(**changed: Any) -> dict[str, Any]:
    """What PEFT writes, with some fields changed."""
    return {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": ALPHA,
        "lora_dropout": 0.0, "bias": "none", "use_rslora": False, "use_dora": False,
        "modules_to_save": None, "rank_pattern": {}, "alpha_pattern": {}, "target_modules": ["x"],
        "init_lora_weights": True, "inference_mode": True, "layer_replication": None, **changed,
    }  # fmt: skip


def peft_tensors(pairs: Mapping[str, Pair]) -> dict[str, Floats]:
    found = {}
    for name, pair in pairs.items():
        found[f"base_model.model.{module_of(name)}.lora_A.weight"] = pair.down
        found[f"base_model.model.{module_of(name)}.lora_B.weight"] = pair.up
    return found


def write_peft(
    folder: Path, tensors: Mapping[str, npt.NDArray[Any]], config: Mapping[str, Any]
) -> Path:
    folder.mkdir(parents=True)
    save_file(dict(tensors), str(folder / "adapter_model.safetensors"))
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def write_lora_gguf(
    path: Path, pairs: Mapping[str, Pair], shape: TinyShape, **changed: Any
) -> Path:
    """As llama.cpp's converter does it: rows of queries and keys that rotate together are
    neighbours."""
    metadata = {
        "general.architecture": shape.architecture, "general.type": "adapter",
        "adapter.type": "lora", "adapter.lora.alpha": ALPHA, **changed,
    }  # fmt: skip
    tensors = {}
    for name, pair in pairs.items():
        up = pair.up
        if "attn_q" in name or "attn_k" in name:
            heads = up.reshape(-1, 2, shape.head_dim // 2, up.shape[1])
            up = np.ascontiguousarray(heads.transpose(0, 2, 1, 3)).reshape(up.shape)
        tensors[f"{name}.lora_a"] = TensorData.quantized(pair.down, "F32")
        tensors[f"{name}.lora_b"] = TensorData.quantized(up, "F32")
    write_gguf(path, metadata, tensors)
    return path
