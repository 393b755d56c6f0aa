"""Random small Gemma 4 models of Transformers against the reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from converted import needs_converter

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
torch = pytest.importorskip("torch", reason="the oracle extra is not installed")

from small_models import check_both_files, check_cpu_kernels, randomized, sizes  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, needs_converter]
PLAIN = {"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0}
KINDS: dict[str, dict[str, Any]] = {
    "plain": PLAIN,
    "keys as values": {**PLAIN, "attention_k_eq_v": True, "num_global_key_value_heads": 1},
    "shared keys and values": {
        "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 3, "use_double_wide_mlp": True,
    },
    "inputs by token": {"hidden_size_per_layer_input": 32, "num_kv_shared_layers": 0},
    "all": {
        "hidden_size_per_layer_input": 32, "num_kv_shared_layers": 2, "use_double_wide_mlp": True,
        "attention_k_eq_v": True, "num_global_key_value_heads": 1,
    },
}  # fmt: skip


SMALL_IMAGES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
    "num_key_value_heads": 1, "head_dim": 32, "position_embedding_size": 64,
}  # fmt: skip


def text_config(kind: str, seed: int) -> Any:
    given = sizes(seed) | {
        "num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3,
        "vocab_size_per_layer_input": sizes(seed)["vocab_size"], "sliding_window": 24,
        "global_head_dim": 128, "final_logit_softcapping": 4.0, "tie_word_embeddings": True,
    }  # fmt: skip
    return transformers.Gemma4TextConfig(**given, **KINDS[kind])


def scaled(model: Any, layers: Any) -> Any:
    """The model; some of its layers' numbers are changed."""
    for i, layer in enumerate(layers):
        layer.layer_scalar.fill_(0.7 + 0.1 * i)
        layer.self_attn.q_norm.weight.data *= 0.25  # scores are not scaled: they would be extreme
    return model


def made(kind: str, seed: int) -> Any:
    model = randomized(transformers.Gemma4ForCausalLM, text_config(kind, seed), seed)
    return scaled(model, model.model.layers)


def made_with_images(kind: str, seed: int) -> Any:
    """Transformers reads the padding token where text has the token of an image, so that is none of
    the vocabulary."""
    config = transformers.Gemma4Config(
        text_config=text_config(kind, seed), image_token_id=VOCABULARY_SIZE,
        boi_token_id=VOCABULARY_SIZE + 1, eoi_token_id=VOCABULARY_SIZE + 2,
        vision_config=transformers.Gemma4VisionConfig(**SMALL_IMAGES), audio_config=None,
        tie_word_embeddings=True,
    )  # fmt: skip
    model = randomized(transformers.Gemma4ForConditionalGeneration, config, seed)
    return scaled(model, model.model.language_model.layers)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    check_both_files(made(kind, seed), tmp_path, seed)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["shared keys and values", "all"])
def test_cpu_kernels_against_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    check_cpu_kernels(made(kind, seed), tmp_path, seed)


def test_text_of_a_gemma_4_that_reads_images(tmp_path: Path) -> None:
    check_both_files(made_with_images("all", 0), tmp_path, 0)
