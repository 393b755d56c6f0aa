"""Hugging Face folders of random small models of any architecture, and adapters of all matrices."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from adapter_files import config_of, write_peft
from safetensors.numpy import load_file, save_file
from tiny_folders import tokenizer_files

from mlc_llm.models.registry import architecture_of, read_config
from mlc_llm.models.tensor_names import MinusExp, Origin, PlusOne, Rows, Scaled, Squeezed
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

Floats = npt.NDArray[np.float32]
Sizes = dict[str, tuple[int, ...]]
RANK = 5
_NO_MATRIX = re.compile(r"\.experts\.|mlp\.gate$|shared_expert_gate$")
"""Modules that adapters leave out: experts, and what chooses them, whose last bits could choose
others."""
USUAL: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE, "hidden_size": 64, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 96, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512, "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
_STATES = {
    "mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 2,
    "mamba_d_conv": 4, "mamba_expand": 2,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "Qwen3_5ForCausalLM": USUAL | {
        "num_hidden_layers": 4, "head_dim": 32, "linear_num_key_heads": 2,
        "linear_key_head_dim": 16, "linear_num_value_heads": 6, "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
    },
    "SmolLM3ForCausalLM": USUAL | {"num_hidden_layers": 4},
    "GraniteMoeHybridForCausalLM": USUAL | _STATES | {
        "num_hidden_layers": 3, "layer_types": ["mamba", "attention", "mamba"],
        "shared_intermediate_size": 96, "num_local_experts": 0, "num_experts_per_tok": 0,
        "position_embedding_type": "nope", "attention_multiplier": 0.25,
    },
    "Glm4ForCausalLM": USUAL | {"num_hidden_layers": 2, "attention_bias": False},
    "Phi3ForCausalLM": USUAL | {"num_hidden_layers": 2},
}  # fmt: skip
CONFIGS["Qwen3_5MoeForCausalLM"] = CONFIGS["Qwen3_5ForCausalLM"] | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip


def write_random(folder: Path, name: str) -> Path:
    """A model of a class in `CONFIGS`. Its experts are stacks of matrices."""
    folder.mkdir()
    config = {**CONFIGS[name], "architectures": [name]}
    texts = {"config.json": json.dumps(config), **tokenizer_files()}
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    rng = np.random.default_rng(7)
    weights = {key: _random(rng, size) for key, size in folder_sizes(config).items()}
    save_file(weights, str(folder / "model.safetensors"))
    return folder


def folder_sizes(config: Mapping[str, Any]) -> Sizes:
    """The shapes of the tensors of a folder, by their names there."""
    origins, found = architecture_of(config).names_of(config).origins, Sizes()
    for name, shape in wanted_tensors(read_config(config)).items():
        layer = re.match(r"blk\.(\d+)\.", name)
        number = layer[1] if layer else ""
        pattern = name.replace(f"blk.{number}.", "blk.{i}.") if layer else name
        _add(found, origins[pattern], shape, number)
    return found


def _add(found: Sizes, origin: Origin, shape: tuple[int, ...], i: str) -> None:
    if isinstance(origin, str):
        parts = shape[:1] if "{e}" in origin else ()
        for e in range(*parts) if parts else (0,):
            found[origin.format(i=i, e=e)] = shape[len(parts) :]
    elif isinstance(origin, Rows):
        assert isinstance(origin.of, str)
        name = origin.of.format(i=i)
        rows = found.get(name, (0,))[0]
        found[name] = (rows + shape[0], *shape[1:])
    elif isinstance(origin, Squeezed):
        assert isinstance(origin.of, str)
        name = origin.of.format(i=i)
        found[name] = (
            (shape[0], 1, shape[1]) if len(shape) == 2 and "conv" in name else ((math.prod(shape),))
        )
    elif isinstance(origin, PlusOne | MinusExp | Scaled):
        _add(found, origin.of, shape, i)
    else:
        _add(found, origin.origins[0] if hasattr(origin, "origins") else origin.of, shape, i)


def _random(rng: np.random.Generator, size: tuple[int, ...]) -> Floats:
    """Vectors are near 1: most of them are norms."""
    values = rng.standard_normal(size)
    near = 1 + 0.3 * values if len(size) == 1 else 1.5 * values / np.sqrt(size[-1])
    return near.astype(np.float32)


def write_adapter(
    folder: Path, model: Path, takes: Callable[[str], bool] = lambda module: True
) -> Path:
    """A PEFT folder that changes the matrices of layers of a model, as much as they are. takes: of
    which modules."""
    rng, tensors = np.random.default_rng(3), {}
    for name, weights in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        if ".layers." not in name or weights.ndim != 2 or _NO_MATRIX.search(module):
            continue
        if not takes(module):
            continue
        rows, columns = weights.shape
        down = rng.standard_normal((RANK, columns)) / np.sqrt(columns)
        up = rng.standard_normal((rows, RANK)) / np.sqrt(RANK)
        for part, values in (("lora_A", down), ("lora_B", up)):
            tensors[f"base_model.model.{module}.{part}.weight"] = values.astype(np.float32)
    assert tensors
    return write_peft(folder, tensors, config_of(r=RANK, lora_alpha=float(RANK)))
