"""Random small models of Transformers' dense architectures, one for each seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import transformers
from small_models import varied

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

HEAD_DIMS, GROUPS = (64, 80, 96, 128), (1, 4, 8, 1)
"""By seed; a group is the query heads that share a head of keys and values."""
SEEDS = range(len(HEAD_DIMS))
CONTEXT = 64
"""Of the first training of models with LongRoPE."""


def sizes(seed: int) -> dict[str, Any]:
    heads = max(GROUPS[seed], 2)
    return {
        "vocab_size": VOCABULARY_SIZE, "hidden_size": heads * HEAD_DIMS[seed],
        "intermediate_size": 96 + 32 * seed, "num_hidden_layers": 2, "num_attention_heads": heads,
        "max_position_embeddings": 256, "tie_word_embeddings": bool(seed % 2),
        "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": None,
    }  # fmt: skip


def grouped(seed: int) -> dict[str, Any]:
    given = sizes(seed)
    return given | {"num_key_value_heads": given["num_attention_heads"] // GROUPS[seed]}


def gpt2(seed: int) -> Any:
    given = sizes(seed)
    config = transformers.GPT2Config(
        vocab_size=given["vocab_size"], n_embd=given["hidden_size"], n_layer=2,
        n_head=given["num_attention_heads"], n_positions=256, bos_token_id=1, eos_token_id=1,
        tie_word_embeddings=given["tie_word_embeddings"],
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


def gpt_neox(seed: int) -> Any:
    part = (0.25, 1.0)[seed % 2]
    config = transformers.GPTNeoXConfig(
        **sizes(seed), use_parallel_residual=seed != 2, attention_bias=seed != 1,
        rope_parameters={
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": part
        },
    )  # fmt: skip
    return transformers.GPTNeoXForCausalLM(config)


def starcoder2(seed: int) -> Any:
    config = transformers.Starcoder2Config(**grouped(seed), use_bias=seed != 1)
    return transformers.Starcoder2ForCausalLM(config)


def stablelm(seed: int) -> Any:
    parallel = seed in (1, 2)
    config = transformers.StableLmConfig(
        **grouped(seed) | {"tie_word_embeddings": False}, use_qkv_bias=seed < 2,
        use_parallel_residual=parallel, partial_rotary_factor=0.25 * (seed + 1),
    )  # fmt: skip
    return transformers.StableLmForCausalLM(config)


def phi3(seed: int) -> Any:
    """The odd seeds have LongRoPE."""
    given, part = grouped(seed), (1.0, 0.75)[seed // 2]
    rope: dict[str, Any] = {"rope_theta": 10000.0, "partial_rotary_factor": part}
    if seed % 2:
        rng, count = np.random.default_rng(seed), int(HEAD_DIMS[seed] * part) // 2
        short, long = rng.uniform(1, 1.5, count), rng.uniform(1, 30, count)
        rope |= {
            "rope_type": "longrope", "short_factor": short.tolist(), "long_factor": long.tolist()
        }  # fmt: skip
    config = transformers.Phi3Config(
        **given, rope_parameters=rope, original_max_position_embeddings=CONTEXT,
        sliding_window=24 if seed == 2 else None,
    )  # fmt: skip
    return transformers.Phi3ForCausalLM(config)


def glm4(seed: int) -> Any:
    given = grouped(seed) | {"head_dim": HEAD_DIMS[seed], "hidden_size": 192}
    config = transformers.Glm4Config(
        **given, attention_bias=seed != 2, partial_rotary_factor=(0.5, 0.25, 1.0, 0.5)[seed]
    )
    return transformers.Glm4ForCausalLM(config)


KINDS = {
    "gpt2": gpt2, "gptneox": gpt_neox, "starcoder2": starcoder2, "stablelm": stablelm,
    "phi3": phi3, "glm4": glm4,
}  # fmt: skip
"""By GGUF's name."""


def fields_of(model: Any) -> dict[str, Any]:
    """What only older versions of Transformers wrote, but the converter reads."""
    config = model.config
    if config.model_type == "gpt2":
        return {"n_ctx": config.n_positions}
    if config.model_type == "gpt_neox":
        return {"rotary_pct": config.rope_parameters["partial_rotary_factor"]}
    return {}


def random_model(kind: str, seed: int) -> Any:
    """All weights, biases and norms are random."""
    torch.manual_seed(20 + seed)  # greedy texts of these models have many different tokens
    model = KINDS[kind](seed)
    model.config.attn_implementation = "eager"
    with torch.no_grad():
        for name, weights in model.named_parameters():
            is_norm = "norm" in name or ".ln_" in name
            scale = 0.1 if is_norm else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
    return varied(model).eval()
