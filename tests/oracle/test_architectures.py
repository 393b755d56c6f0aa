"""Random small models of Transformers, in float32, against the reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")

from hugging_face import write_model  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
LENGTH = 80
WORST = 1e-4
"""Of the largest logit."""


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
        config = transformers.LlamaConfig(**given)
        return transformers.LlamaForCausalLM(config), {"rope.freq_base": 10000.0}
    if kind == "qwen3":
        config = transformers.Qwen3Config(**given)
        return transformers.Qwen3ForCausalLM(config), {
            "rope.freq_base": float(config.rope_parameters["rope_theta"])
        }
    given |= {"num_hidden_layers": 7, "tie_word_embeddings": True}
    config = transformers.Gemma3TextConfig(
        **given, sliding_window=24, query_pre_attn_scalar=given["head_dim"]
    )
    return transformers.Gemma3ForCausalLM(config), {"attention.sliding_window": 24}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma3"])
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    from architecture_tools import relative_error, runner_of

    torch.manual_seed(seed)
    model, more = made(kind, seed)
    with torch.no_grad():
        for name, weights in model.named_parameters():
            scale = 0.1 if "norm" in name else 0.3
            weights.add_(torch.randn_like(weights) * scale / max(weights.shape) ** 0.25)
        write_model(tmp_path / "model.gguf", kind, model, more)
        tokens = np.random.default_rng(seed).integers(0, 256, LENGTH).tolist()
        exact = model.eval()(torch.tensor([tokens])).logits[0].double().numpy()
    found = runner_of(tmp_path / "model.gguf", tmp_path, "reference").logits(tokens)
    assert relative_error(found, exact) <= WORST
