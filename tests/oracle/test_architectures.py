"""Random small models of Transformers, in float32, against the reference kernels."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_config, read_gguf
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from hugging_face import write_model  # noqa: E402
from small_models import VARIED, varied  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
KINDS = ("llama", "qwen3", "qwen3moe", "gemma3", "lfm2")
LFM2_LAYERS = (
    ("conv", "full_attention"),
    ("full_attention", "conv", "conv", "full_attention"),
    ("conv", "conv", "full_attention"),
)
"""By seed."""
NAMES = ("architectures", "model_type")
LENGTH = 80
PROMPT, ANSWER = 16, 64
"""Tokens of a greedy answer and its prompt."""
WORST = 1e-4
"""Of the largest logit."""
SAME = 1e-5
"""The same between the two file formats."""


def sizes(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    kv_heads = int(rng.integers(1, 4))
    heads = kv_heads * int(rng.integers(1, 4))
    return {
        "vocab_size": VOCABULARY_SIZE,
        "hidden_size": 32 * heads,
        "intermediate_size": 32 * int(rng.integers(2, 6)),
        "num_hidden_layers": int(rng.integers(1, 4)),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": 16 * int(rng.integers(1, 5)),
        "max_position_embeddings": 256,
        "tie_word_embeddings": bool(rng.integers(2)),
        "attn_implementation": "eager",
    }


def made(kind: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """A model, and its metadata beyond what all architectures have."""
    given = sizes(seed)
    if kind == "llama":
        biases = {"attention_bias": True, "mlp_bias": True} if seed % 2 else {}
        config = transformers.LlamaConfig(**given, **biases)
        return transformers.LlamaForCausalLM(config), {"rope.freq_base": 10000.0}
    if kind == "qwen3":
        config = transformers.Qwen3Config(**given)
        return transformers.Qwen3ForCausalLM(config), {
            "rope.freq_base": float(config.rope_parameters["rope_theta"])
        }
    if kind == "qwen3moe":
        config = transformers.Qwen3MoeConfig(
            **given, num_experts=4 + seed, num_experts_per_tok=1 + seed, moe_intermediate_size=48,
            norm_topk_prob=bool(seed % 2),
        )  # fmt: skip
        return transformers.Qwen3MoeForCausalLM(config), {
            "rope.freq_base": float(config.rope_parameters["rope_theta"]),
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
            "expert_weights_norm": config.norm_topk_prob,
        }
    if kind == "lfm2":
        return made_lfm2(given, seed)
    given |= {"num_hidden_layers": 7, "tie_word_embeddings": True}
    config = transformers.Gemma3TextConfig(
        **given, sliding_window=24, query_pre_attn_scalar=given["head_dim"]
    )
    return transformers.Gemma3ForCausalLM(config), {"attention.sliding_window": 24}


def made_lfm2(given: dict[str, Any], seed: int) -> tuple[Any, dict[str, Any]]:
    """Heads have the size that the hidden one leaves; the network's size is adjusted."""
    types = LFM2_LAYERS[seed]
    del given["head_dim"]
    given |= {"num_hidden_layers": len(types), "layer_types": list(types), "conv_L_cache": 2 + seed}
    config = transformers.Lfm2Config(**given, block_multiple_of=32)
    model = transformers.Lfm2ForCausalLM(config)
    return model, {
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "attention.head_count_kv": [
            config.num_key_value_heads if one == "full_attention" else 0 for one in types
        ],
        "shortconv.l_cache": config.conv_L_cache,
        "feed_forward_length": model.model.layers[0].feed_forward.w1.out_features,
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_spec_from_config_equals_spec_from_gguf(tmp_path: Path, kind: str, seed: int) -> None:
    """`config.json` as Transformers writes it, with and without the name of the class."""
    model, more = made(kind, seed)
    write_model(tmp_path / "model.gguf", kind, model, more)
    file = GGUFFile.open(tmp_path / "model.gguf")
    expected = replace(read_gguf(file.metadata, file.tensors).spec, kinds={})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [type(model).__name__]
    for names in NAMES:
        found = read_config({k: v for k, v in config.items() if k == names or k not in NAMES})
        in_file = float(np.float32(found.norm_eps))  # GGUF has no wider numbers
        assert replace(found, norm_eps=in_file) == expected


def random_model(kind: str, seed: int) -> tuple[Any, dict[str, Any]]:
    """`made`, with norms and biases that are not all alike."""
    torch.manual_seed(seed)
    model, more = made(kind, seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            scale = 0.1 if "norm" in name else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
    return varied(model).eval(), more


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    from architecture_tools import relative_error, runner_of, runner_of_folder

    model, more = random_model(kind, seed)
    with torch.no_grad():
        write_model(tmp_path / "model.gguf", kind, model, more)
        tokens = np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()
        exact = model(torch.tensor([tokens])).logits[0].double().numpy()
    runner = runner_of(tmp_path / "model.gguf", tmp_path, "reference")
    for chunk in (None, 7, 1):
        assert relative_error(runner.logits(tokens, chunk=chunk), exact) <= WORST, chunk
    model.save_pretrained(tmp_path / "folder")
    (tmp_path / "of-folder").mkdir()
    same = runner_of_folder(tmp_path / "folder", tmp_path / "of-folder", "reference")
    assert relative_error(same.logits(tokens), exact) <= WORST
    assert relative_error(same.logits(tokens), runner.logits(tokens)) <= SAME
    greedy = greedy_tokens(model, tokens[:PROMPT])
    assert len(set(greedy[PROMPT:])) >= VARIED
    assert same.logits(greedy[:-1])[PROMPT - 1 :].argmax(axis=1).tolist() == greedy[PROMPT:]


def greedy_tokens(model: Any, prompt: list[int]) -> list[int]:
    """The prompt and what Transformers makes of it, always the likeliest token."""
    model.generation_config.eos_token_id = None
    found = model.generate(torch.tensor([prompt]), max_new_tokens=ANSWER, do_sample=False)
    assert len(found[0]) == len(prompt) + ANSWER
    tokens: list[int] = found[0].tolist()
    return tokens
