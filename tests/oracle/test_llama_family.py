"""Architectures that are a Llama with a few facts more: random small models of Transformers, in
float32, written by llama.cpp's converter, against the reference kernels."""

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

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]
LENGTH = 80
WORST = 1e-4
"""Of the largest logit."""
HALF_WORST = 5e-3
"""The same of kernels that keep keys and values in float16."""
CPU_KERNELS = ("portable", None, "portable", None)
"""By seed; None is this machine's."""
HEAD_DIMS, GROUPS, KV_HEADS = (64, 80, 96, 128), (1, 4, 8, 2), (2, 1, 1, 2)
"""By seed."""
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
QUERY_SCALES = {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.25}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("Llama", {"rope_parameters": LLAMA3}),
    "llama with YaRN": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "ministral 3": ("Ministral3", {"rope_parameters": YARN | QUERY_SCALES}),
    "smollm 3": ("SmolLM3", {"num_hidden_layers": 5}),
    "granite": (
        "Granite",
        {
            "attention_multiplier": 0.25, "embedding_multiplier": 6.0, "logits_scaling": 4.0,
            "residual_multiplier": 0.25,
        },
    ),
    "qwen 2": ("Qwen2", {}),
    "seed-oss": ("SeedOss", {}),
    "gemma 2": (
        "Gemma2",
        {"sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    ),
    "gemma 3": ("Gemma3", {"num_hidden_layers": 7, "sliding_window": 24}),
    "olmo 2": ("Olmo2", {}),
    "olmo 3": (
        "Olmo3",
        {
            "num_hidden_layers": 5, "sliding_window": 24,
            "rope_parameters": {
                "full_attention": YARN,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
}  # fmt: skip
WINDOWS = {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}
FOLDERS_ONLY: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral with its window": ("Mistral", {"sliding_window": 24}),
    "qwen 2 with windows": ("Qwen2", WINDOWS),
    "smollm 3 with other layers": ("SmolLM3", {"no_rope_layers": [0, 1]}),
    "gemma 2 with another scale": ("Gemma2", {"query_pre_attn_scalar": 30}),
    "seed-oss with all biases": ("SeedOss", {"attention_out_bias": True, "mlp_bias": True}),
}
TIED = ("Gemma2", "Gemma3")
"""Converters leave the head out."""


def sizes(seed: int) -> dict[str, Any]:
    """The hidden size is that of all heads, because some architectures can have no other."""
    dim, kv_heads = HEAD_DIMS[seed], KV_HEADS[seed]
    heads = kv_heads * GROUPS[seed]
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": dim * heads,
        "intermediate_size": 32 * (seed + 2),
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "max_position_embeddings": 256,
        "tie_word_embeddings": bool(seed % 2),
        "attn_implementation": "eager",
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }


def made(name: str, more: dict[str, Any], seed: int) -> Any:
    """A model of that name. more: fields of its configuration."""
    given = {**sizes(seed), **more}
    if name in TIED:
        given = {"query_pre_attn_scalar": given["head_dim"], **given, "tie_word_embeddings": True}
    config_class = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    torch.manual_seed(seed)
    model = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, config_class)(**given)
    )
    with torch.no_grad():
        for parameter, weights in model.named_parameters():
            scale = 0.1 if "norm" in parameter else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
    return model.eval()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    from architecture_tools import relative_error, runner_of, runner_of_folder

    model = made(*KINDS[kind], seed)
    path = converted(model, tmp_path)
    file = GGUFFile.open(path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    of_file = replace(read_gguf(file.metadata, file.tensors).spec, kinds={})
    assert simple(read_config(config)) == simple(of_file)
    tokens, exact = answered(model, seed)
    runner = runner_of(path, tmp_path, "reference")
    for chunk in (None, 7, 1):
        assert relative_error(runner.logits(tokens, chunk=chunk), exact) <= WORST, chunk
    path.unlink()
    (tmp_path / "of-folder").mkdir()
    same = runner_of_folder(tmp_path, tmp_path / "of-folder", "reference")
    assert relative_error(same.logits(tokens), exact) <= WORST


@pytest.mark.parametrize("kind", FOLDERS_ONLY)
def test_logits_of_what_gguf_files_do_not_say(tmp_path: Path, kind: str) -> None:
    from architecture_tools import relative_error, runner_of_folder

    model = made(*FOLDERS_ONLY[kind], seed=1)
    model.save_pretrained(tmp_path)
    tokens, exact = answered(model, seed=1)
    runner = runner_of_folder(tmp_path, tmp_path, "reference")
    for chunk in (None, 7, 1):
        assert relative_error(runner.logits(tokens, chunk=chunk), exact) <= WORST, chunk


def answered(model: Any, seed: int) -> tuple[list[int], Any]:
    """Random tokens, and all logits of the model."""
    tokens = np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()
    with torch.no_grad():
        return tokens, model(torch.tensor([tokens])).logits[0].double().numpy()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_kernels_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    """All chunk sizes give the same bits."""
    from architecture_tools import relative_error, runner_of

    model, kernels = made(kind, seed), CPU_KERNELS[seed]
    tokens = np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()
    with torch.no_grad():
        exact = model(torch.tensor([tokens])).logits[0].double().numpy()
    runner = runner_of(converted(model, tmp_path), tmp_path, kernels)
    whole = runner.logits(tokens)
    assert relative_error(whole, exact) <= (HALF_WORST if kernels is None else WORST)
    for chunk in (7, 1):
        assert runner.logits(tokens, chunk=chunk).tobytes() == whole.tobytes(), chunk


def simple(spec: Any) -> Any:
    """Numbers as GGUF has them, in float32, and no divisors, which it may have as a tensor."""
    ropes = tuple(
        replace(one, factors=None if one.magnitude == 1 else one.factors) for one in spec.ropes
    )
    return replace(spec, norm_eps=float(np.float32(spec.norm_eps)), ropes=ropes)
