"""Architectures that are a Llama with a few facts more: random small models of Transformers, in
float32, written by llama.cpp's converter, against the reference kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from converted import needs_converter

transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytest.importorskip("torch", reason="the oracle extra is not installed")

from architecture_tools import relative_error, runner_of_folder  # noqa: E402
from small_models import (  # noqa: E402
    WORST,
    check_both_files,
    check_cpu_kernels,
    check_folder,
    exact_logits,
    randomized,
    sizes,
    tokens_of,
)

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {
    "rope_type": "yarn", "rope_theta": 1000.0, "factor": 4.0, "beta_fast": 4.0, "beta_slow": 1.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": 64,
    "short_factor": [1 + i / 80 for i in range(40)], "long_factor": [1 + i / 4 for i in range(40)],
}  # fmt: skip
"""For heads of 80 elements."""
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
    "arcee": ("Arcee", {}),
    "ernie 4.5": ("Ernie4_5", {}),
    "ernie 4.5 with biases": ("Ernie4_5", {"use_bias": True}),
    "qwen 2": ("Qwen2", {}),
    "qwen 3": ("Qwen3", {}),
    "seed-oss": ("SeedOss", {}),
    "gemma": ("Gemma", {}),
    "gemma 2": (
        "Gemma2",
        {"sliding_window": 24, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 4.0},
    ),
    "gemma 3": ("Gemma3", {"num_hidden_layers": 7, "sliding_window": 24}),
    "cohere 2": (
        "Cohere2",
        {
            "num_hidden_layers": 5, "sliding_window": 24, "logit_scale": 0.25,
            "rotary_pct": 1.0,  # the converter asks for it
        },
    ),
    "exaone 4": ("Exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 2}),
    "exaone 4 with windows": ("Exaone4", {"num_hidden_layers": 5, "sliding_window": 24}),
    "olmo 2": ("Olmo2", {}),
    "olmo 3": (
        "Olmo3",
        {
            "num_hidden_layers": 5, "sliding_window": 24,
            "rope_parameters": {
                "full_attention": YARN | {"beta_fast": 32.0},  # llama.cpp reads no other one here
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
    "arcee with biases": ("Arcee", {"attention_bias": True, "mlp_bias": True}),
    "llama with a dynamic rotation": (
        "Llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama with LongRoPE": ("Llama", {"rope_parameters": LONGROPE}),
    "qwen 3 with LongRoPE of a factor": ("Qwen3", {"rope_parameters": LONGROPE | {"factor": 8.0}}),
    "gemma 3 with LongRoPE": (
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "sliding_window": 24,
            "rope_parameters": {
                "full_attention": LONGROPE,
                "sliding_attention": {"rope_type": "default", "rope_theta": 1000.0},
            },
        },
    ),
    "seed-oss with all biases": ("SeedOss", {"attention_out_bias": True, "mlp_bias": True}),
}
TIED = ("Cohere2", "Gemma", "Gemma2", "Gemma3")
"""Converters leave the head out."""
SMALL_IMAGES = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 1,
    "image_size": 28, "patch_size": 14,
}  # fmt: skip


def text_config(name: str, more: dict[str, Any], seed: int) -> Any:
    """more: fields of it."""
    given = {**sizes(seed), **more}
    if name in TIED:
        given = {"query_pre_attn_scalar": given["head_dim"], **given, "tie_word_embeddings": True}
    config_class = f"{name}TextConfig" if name == "Gemma3" else f"{name}Config"
    return getattr(transformers, config_class)(**given)


def made(name: str, more: dict[str, Any], seed: int) -> Any:
    """A model of that name."""
    config = text_config(name, more, seed)
    return randomized(getattr(transformers, f"{name}ForCausalLM"), config, seed)


@needs_converter
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    check_both_files(made(*KINDS[kind], seed), tmp_path, seed)


@needs_converter
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_cpu_kernels_equal_transformers(tmp_path: Path, kind: str, seed: int) -> None:
    check_cpu_kernels(made(*KINDS[kind], seed), tmp_path, seed)


@pytest.mark.parametrize("kind", FOLDERS_ONLY)
def test_logits_of_what_gguf_files_do_not_say(tmp_path: Path, kind: str) -> None:
    check_folder(made(*FOLDERS_ONLY[kind], seed=1), tmp_path, seed=1)


@pytest.mark.parametrize("kind", [one for one in FOLDERS_ONLY if "LongRoPE" in one])
def test_short_texts_with_longrope(tmp_path: Path, kind: str) -> None:
    """Where no sequence may be longer than the first training's context, other factors hold."""
    model, tokens = made(*FOLDERS_ONLY[kind], seed=1), tokens_of(1)[:64]
    model.save_pretrained(tmp_path)
    short = runner_of_folder(tmp_path, tmp_path, "reference", context_window=64)
    exact = exact_logits(model, tokens)
    assert relative_error(short.logits(tokens), exact) <= WORST
    long = runner_of_folder(tmp_path, tmp_path, "reference", context_window=65)
    assert relative_error(long.logits(tokens), exact) > 100 * WORST


def gemma_3_with_images(seed: int) -> Any:
    config = transformers.Gemma3Config(
        text_config=text_config(*KINDS["gemma 3"], seed),
        vision_config=transformers.SiglipVisionConfig(**SMALL_IMAGES),
        mm_tokens_per_image=4, image_token_index=290, boi_token_index=291, eoi_token_index=292,
    )  # fmt: skip
    return randomized(transformers.Gemma3ForConditionalGeneration, config, seed)


def mistral_3_with_images(kind: str, seed: int) -> Any:
    text = text_config(*KINDS[kind], seed)
    config = transformers.Mistral3Config(
        text_config=text, image_token_index=290, tie_word_embeddings=text.tie_word_embeddings,
        vision_config=transformers.PixtralVisionConfig(head_dim=32, **SMALL_IMAGES),
    )  # fmt: skip
    return randomized(transformers.Mistral3ForConditionalGeneration, config, seed)


def qwen_with_images(name: str, seed: int) -> Any:
    """name: of a Qwen-VL, before "Config"."""
    given = sizes(seed)
    pairs = given["head_dim"] // 2
    sections: dict[str, Any] = {"mrope_section": [(pairs + i) // 3 for i in (2, 1, 0)]}
    is_third = name.startswith("Qwen3")
    tied = given.pop("tie_word_embeddings")
    tower = {"depth": 1, "num_heads": 1, "patch_size": 14}
    tower |= {"hidden_size": 32, "intermediate_size": 32, "out_hidden_size": given["hidden_size"]}
    if is_third:
        sections |= {"mrope_interleaved": True}
        tower |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 16}
    if name == "Qwen2VL":
        tower |= {"embed_dim": 32, "hidden_size": given["hidden_size"]}
    text = {**given, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **sections}}
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=tower, tie_word_embeddings=tied,
        attn_implementation="eager",
    )  # fmt: skip
    return randomized(getattr(transformers, f"{name}ForConditionalGeneration"), config, seed)


QWENS = ("Qwen2VL", "Qwen2_5_VL", "Qwen3VL")


@needs_converter
@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("name", QWENS)
def test_text_of_a_qwen_that_reads_images(tmp_path: Path, name: str, seed: int) -> None:
    check_both_files(qwen_with_images(name, seed), tmp_path, seed)


@needs_converter
@pytest.mark.parametrize("seed", range(2))
def test_text_of_a_gemma_3_that_reads_images(tmp_path: Path, seed: int) -> None:
    check_both_files(gemma_3_with_images(seed), tmp_path, seed)


@needs_converter
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["ministral 3", "mistral"])
def test_text_of_a_mistral_3_that_reads_images(tmp_path: Path, kind: str, seed: int) -> None:
    check_both_files(mistral_3_with_images(kind, seed), tmp_path, seed)
