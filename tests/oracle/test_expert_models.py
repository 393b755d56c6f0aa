"""Architectures with experts: random small models of Transformers, in float32, as GGUF files that
llama.cpp's converter has written and as Hugging Face folders, against the reference kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from converted import converted, needs_converter

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from small_models import check_cpu_kernels, check_reference, varied  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]
HEAD_DIMS, GROUPS, KV_HEADS = (64, 80, 128), (1, 4, 8), (2, 1, 1)
"""By seed."""
MULTIPLIERS = {
    "attention_multiplier": 0.125, "embedding_multiplier": 12.0, "logits_scaling": 8.0,
    "residual_multiplier": 0.25,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 32, "truncate": False,
}  # fmt: skip
PLAIN = {"rope_type": "default", "rope_theta": 150000.0}
# llama.cpp's converter leaves `norm_topk_prob` of Qwen3 MoE out: it is true in published models.
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "mixtral": ("Mixtral", {}),
    "olmoe": ("Olmoe", {}),
    "qwen 2 moe": (
        "Qwen2Moe", {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 96}
    ),
    "qwen 3 moe": ("Qwen3Moe", {"moe_intermediate_size": 64, "norm_topk_prob": True}),
    "lfm2 moe": (
        "Lfm2Moe",
        {
            "moe_intermediate_size": 64, "num_hidden_layers": 3, "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention", "conv"],
            "tie_word_embeddings": True,  # the converter knows no head
        },
    ),
    "granitemoe": ("GraniteMoe", MULTIPLIERS),
    "granitemoe with a shared network": (
        "GraniteMoeShared", MULTIPLIERS | {"shared_intermediate_size": 96}
    ),
    "gpt-oss": (
        "GptOss", {"sliding_window": 24, "num_hidden_layers": 3, "rope_parameters": PLAIN}
    ),
    "gpt-oss with YaRN": (
        "GptOss", {"sliding_window": 24, "num_hidden_layers": 2, "rope_parameters": YARN}
    ),
}  # fmt: skip


def made(kind: str, seed: int) -> Any:
    """Of the hidden size of all heads, because some of the architectures can have no other."""
    name, more = KINDS[kind]
    dim, kv_heads = HEAD_DIMS[seed], KV_HEADS[seed]
    heads = kv_heads * GROUPS[seed]
    given = {
        "vocab_size": VOCABULARY_SIZE, "hidden_size": dim * heads,
        "intermediate_size": 32 * (seed + 2), "num_hidden_layers": 2, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "max_position_embeddings": 256,
        "tie_word_embeddings": bool(seed % 2) and name != "GptOss", "num_experts_per_tok": 1 + seed,
        "num_local_experts": 4 + seed, "attn_implementation": "eager", "pad_token_id": 0,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    if name in ("GptOss", "Qwen3Moe"):
        given["head_dim"] = dim
    if name in ("Lfm2Moe", "Olmoe", "Qwen2Moe", "Qwen3Moe"):
        given["num_experts"] = given.pop("num_local_experts")
    torch.manual_seed(seed + 3)
    config = getattr(transformers, f"{name}Config")(**(given | more))
    model = getattr(transformers, f"{name}ForCausalLM")(config)
    with torch.no_grad():
        for parameter, weights in model.named_parameters():
            scale = 0.1 if "norm" in parameter else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
        for buffer, numbers in model.named_buffers():
            if buffer.endswith("expert_bias"):  # by which experts are chosen
                numbers.copy_(torch.randn_like(numbers) * 0.2)
    return varied(model).eval()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    model = made(kind, seed)
    path = converted(model, tmp_path)
    file = GGUFFile.open(path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    of_file = replace(read_gguf(file.metadata, file.tensors).spec, kinds={})
    of_config = read_config(config)
    in_file = float(np.float32(of_config.norm_eps))  # GGUF has no wider numbers
    assert replace(of_config, norm_eps=in_file) == of_file
    check_reference(path, tmp_path, model, seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_kernels_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    check_cpu_kernels(made(kind, seed), tmp_path, seed)


def microscaled(model: Any, rng: np.random.Generator) -> dict[str, Any]:
    """Random blocks and exponents for each stack of experts, whose values the model gets."""
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    table = np.array(magnitudes + [-one for one in magnitudes], np.float32)
    found = {}
    for name, weights in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            count, columns, rows = weights.shape
            shape = (count, rows, columns // 32)
            blocks = rng.integers(0, 256, (*shape, 16), np.uint8)
            scales = rng.integers(121, 124, shape, np.uint8)
            values = np.stack([table[blocks & 15], table[blocks >> 4]], axis=-1)
            factors = np.ldexp(np.float32(1), scales.astype(np.int32) - 127)
            matrices = values.reshape(*shape, 32) * factors[..., None]
            weights.copy_(torch.from_numpy(matrices.reshape(count, rows, columns)).transpose(1, 2))
            found |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return found


class Published:
    """gpt-oss as it is published: blocks and exponents where Transformers saves stacks."""

    def __init__(self, model: Any, packed: dict[str, Any]) -> None:
        self.model, self.packed = model, packed

    def save_pretrained(self, folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        self.model.save_pretrained(folder)
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config["quantization_config"] = {"quant_method": "mxfp4"}
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
        stacks = ("experts.gate_up_proj", "experts.down_proj")
        tensors = load_file(folder / "model.safetensors")
        kept = {name: one for name, one in tensors.items() if not name.endswith(stacks)}
        bytes_of = {name: torch.from_numpy(one) for name, one in self.packed.items()}
        save_file(kept | bytes_of, folder / "model.safetensors", {"format": "pt"})


def test_experts_in_microscaled_floats(tmp_path: Path) -> None:
    model, rng = made("gpt-oss", 0), np.random.default_rng(0)
    with torch.no_grad():
        packed = microscaled(model, rng)
    path = converted(Published(model, packed), tmp_path)
    file = GGUFFile.open(path)
    kinds = {name: one.kind for name, one in file.tensors.items() if name.endswith("exps.weight")}
    assert set(kinds.values()) == {"MXFP4"} and len(kinds) == 9
    check_reference(path, tmp_path, model, seed=0)
