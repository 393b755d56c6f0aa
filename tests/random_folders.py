"""Hugging Face folders of random small models of any architecture, and adapters of all matrices."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from adapter_files import config_of, write_peft
from safetensors.numpy import load_file, save_file
from tiny_folders import tokenizer_files

from mlc_llm.models.registry import architecture_of, read_config
from mlc_llm.models.tensor_names import (
    Either,
    HeadRows,
    MinusExp,
    Origin,
    PlusOne,
    Rows,
    Scaled,
    Squeezed,
    Stacked,
    Transposed,
)
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

Floats = npt.NDArray[np.float32]
Sizes = dict[str, tuple[int, ...]]
RANK = 5
TURNED = "GPT2LMHeadModel"
"""Its folders have matrices [columns, rows]."""
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
    "Lfm2ForCausalLM": USUAL | {
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"],
        "conv_L_cache": 3, "norm_eps": 1e-5, "block_auto_adjust_ff_dim": False,
        "tie_embedding": True,
    },
    "FalconH1ForCausalLM": USUAL | _STATES | {
        "num_hidden_layers": 2, "mamba_norm_before_gate": False, "embedding_multiplier": 1.5,
        "lm_head_multiplier": 0.5, "attention_in_multiplier": 1.25, "key_multiplier": 0.5,
        "attention_out_multiplier": 1.5, "mlp_multipliers": [0.75, 0.5], "ssm_in_multiplier": 1.25,
        "ssm_out_multiplier": 0.5, "ssm_multipliers": [1.0, 0.5, 0.75, 1.25, 1.5],
    },
    "Mamba2ForCausalLM": {
        "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": VOCABULARY_SIZE, "num_heads": 4,
        "head_dim": 32, "state_size": 16, "n_groups": 2, "conv_kernel": 4, "expand": 2,
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
    },
    "RWKV7ForCausalLM": {
        "num_hidden_layers": 3, "hidden_size": 64, "vocab_size": VOCABULARY_SIZE, "head_dim": 32,
        "intermediate_size": 96, "decay_low_rank_dim": 32, "a_low_rank_dim": 32,
        "v_low_rank_dim": 32, "gate_low_rank_dim": 32, "norm_eps": 1e-5, "hidden_act": "sqrelu",
    },
    "Phi3ForCausalLM": USUAL | {"num_hidden_layers": 2},
    TURNED: {
        "n_embd": 64, "n_head": 4, "n_layer": 2, "n_positions": 512, "layer_norm_epsilon": 1e-5,
        "vocab_size": VOCABULARY_SIZE, "activation_function": "gelu_new",
    },
}  # fmt: skip
CONFIGS["Qwen3_5MoeForCausalLM"] = CONFIGS["Qwen3_5ForCausalLM"] | {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 64,
}  # fmt: skip


def write_random(folder: Path, name: str, config: Mapping[str, Any] | None = None) -> Path:
    """A model of a class. config: None is that of `CONFIGS`."""
    folder.mkdir()
    config = {**(config or CONFIGS[name]), "architectures": [name]}
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
    wanted = wanted_tensors(read_config(config))
    for name, shape in wanted.items():
        layer = re.match(r"blk\.(\d+)\.", name)
        number = layer[1] if layer else ""
        origin = origins[name.replace(f"blk.{number}.", "blk.{i}.") if layer else name]
        if isinstance(origin, HeadRows):
            _add(found, origin.of, (origin.parts * shape[0], *shape[1:]), number)
        elif isinstance(origin, Rows):
            rows = sum(wanted[part.format(i=number)][0] for part in origin.parts)
            _add(found, origin.of, (rows, *shape[1:]), number)
        else:
            _add(found, origin, shape, number)
    return found


def _add(found: Sizes, origin: Origin, shape: tuple[int, ...], i: str) -> None:
    """Of what a tensor of GGUF with such a shape is made of."""
    if isinstance(origin, str):
        names = range(shape[0]) if "{e}" in origin else (0,)
        for e in names:
            found[origin.format(i=i, e=e)] = shape[1:] if "{e}" in origin else shape
    elif isinstance(origin, Either):
        _add(found, origin.origins[0], shape, i)
    elif isinstance(origin, Stacked):
        for one in origin.rows:
            _add(found, one, shape[1:], i)
    elif isinstance(origin, Squeezed):
        is_kernel = len(shape) == 2 and "conv" in str(origin.of)
        _add(found, origin.of, (shape[0], 1, shape[1]) if is_kernel else (math.prod(shape),), i)
    elif isinstance(origin, Transposed):
        _add(found, origin.of, shape[::-1], i)
    else:
        assert isinstance(origin, PlusOne | MinusExp | Scaled)
        _add(found, origin.of, shape, i)


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
    turned = json.loads((model / "config.json").read_text())["architectures"] == [TURNED]
    for name, weights in load_file(model / "model.safetensors").items():
        module = name.removesuffix(".weight")
        in_layer = re.search(r"\.\d+\.", name) and not _NO_MATRIX.search(module)
        if not in_layer or weights.ndim != 2 or not takes(module):
            continue
        rows, columns = weights.shape[::-1] if turned else weights.shape
        down = rng.standard_normal((RANK, columns)) / np.sqrt(columns)
        up = rng.standard_normal((rows, RANK)) / np.sqrt(RANK)
        for part, values in (("lora_A", down), ("lora_B", up)):
            tensors[f"base_model.model.{module}.{part}.weight"] = values.astype(np.float32)
    assert tensors
    changes = {"fan_in_fan_out": True} if turned else {}
    return write_peft(folder, tensors, config_of(r=RANK, lora_alpha=float(RANK), **changes))


def write_merged(folder: Path, model: Path, adapter: Path) -> Path:
    """The model whose matrices have the changes of an adapter in them, by its definition. Not for
    `TURNED`."""
    shutil.copytree(model, folder)
    weights, start = load_file(model / "model.safetensors"), "base_model.model."
    factors = load_file(adapter / "adapter_model.safetensors")
    for name, down in factors.items():
        module, part, _ = name.removeprefix(start).rsplit(".", 2)
        if part == "lora_A":
            weights[f"{module}.weight"] += factors[f"{start}{module}.lora_B.weight"] @ down
    save_file(weights, str(folder / "model.safetensors"))
    return folder
