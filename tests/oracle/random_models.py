"""A random small model of Transformers for each class that the registry has."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import dense_models
import test_architectures
import test_expert_models
import test_gemma3_images
import test_gemma4
import test_llama_family
import test_smolvlm_images
import test_state_spaces
import transformers
from eyes import Eyes, with_old_names
from image_chats import Chat
from rwkv_model import RandomRwkv7

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE

SEED = 0


def random_of(config_class: str) -> Any:
    """Raises LookupError for a class that no test of the oracle makes."""
    if config_class in _OTHERS:
        return _OTHERS[config_class]()
    for name, more in test_llama_family.KINDS.values():
        if config_class == f"{name}ForCausalLM":
            return test_llama_family.made(name, more, SEED)
    for kind, (name, _) in test_expert_models.KINDS.items():
        if config_class == f"{name}ForCausalLM":
            return test_expert_models.made(kind, SEED)
    raise LookupError(f"no test of the oracle makes a {config_class}")


def eyes_of(config_class: str) -> tuple[Eyes, dict[str, Chat]]:
    """A model that reads images, and chats for it. Raises LookupError like `random_of`."""
    if config_class not in _EYES:
        raise LookupError(f"no test of the oracle makes a {config_class} that reads images")
    make, chats = _EYES[config_class]
    return make(), chats


def granite_hybrid(kind: str, seed: int) -> Any:
    """Of `test_state_spaces`. It saves itself with the names of layers that llama.cpp's converter
    knows."""
    model = test_state_spaces.made(kind, seed)
    model.save_pretrained = test_state_spaces.Published(model).save_pretrained
    return model


def _qwen_3_5_with_images(kind: str, name: str) -> Any:
    """The language model of a small Qwen3.5, under the names of a model that reads images."""
    text = test_state_spaces.made(kind, SEED)
    config = getattr(transformers, f"{name}Config")(
        text_config=text.config.to_dict(),
        vision_config={
            "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2,
            "out_hidden_size": text.config.hidden_size, "num_position_embeddings": 16,
        },
        tie_word_embeddings=text.config.tie_word_embeddings,
    )  # fmt: skip
    model = getattr(transformers, f"{name}ForConditionalGeneration")(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    return model


def _of_tiles(name: str) -> Any:
    """A small model that reads images in tiles. It saves itself with the names of layers that
    published folders have, which llama.cpp's converter knows."""
    found = test_smolvlm_images.eyes(name=name).model
    found.resize_token_embeddings(VOCABULARY_SIZE)  # without the token that stands for images
    plain = found.save_pretrained

    def save_pretrained(folder: Path) -> None:
        plain(folder)
        with_old_names(folder / "model.safetensors")

    found.save_pretrained = save_pretrained
    return found


_TILES = ("Idefics3", "SmolVLM")
_DENSE = {
    "GPT2LMHeadModel": "gpt2", "GPTNeoXForCausalLM": "gptneox", "Glm4ForCausalLM": "glm4",
    "Phi3ForCausalLM": "phi3", "StableLmForCausalLM": "stablelm",
    "Starcoder2ForCausalLM": "starcoder2",
}  # fmt: skip
_OTHERS: dict[str, Callable[[], Any]] = {
    **{name: partial(dense_models.random_model, kind, SEED) for name, kind in _DENSE.items()},
    **{f"{name}ForConditionalGeneration": partial(_of_tiles, name) for name in _TILES},
    "FalconH1ForCausalLM": partial(test_state_spaces.made, "falcon", SEED),
    "Gemma3ForConditionalGeneration": partial(test_llama_family.gemma_3_with_images, SEED),
    "Gemma4ForCausalLM": partial(test_gemma4.made, "all", SEED),
    "Gemma4ForConditionalGeneration": partial(test_gemma4.made_with_images, "all", SEED),
    "GraniteMoeHybridForCausalLM": partial(granite_hybrid, "experts", SEED),
    "Lfm2ForCausalLM": lambda: test_architectures.random_model("lfm2", SEED)[0],
    "Mamba2ForCausalLM": partial(test_state_spaces.made, "mamba 2", SEED),
    "Qwen3NextForCausalLM": partial(test_state_spaces.made, "qwen next", SEED),
    "Qwen3_5ForCausalLM": partial(test_state_spaces.made, "qwen 3.5", SEED),
    "Qwen3_5ForConditionalGeneration": partial(_qwen_3_5_with_images, "qwen 3.5", "Qwen3_5"),
    "Qwen3_5MoeForCausalLM": partial(test_state_spaces.made, "qwen 3.5 moe", SEED),
    "Qwen3_5MoeForConditionalGeneration": partial(
        _qwen_3_5_with_images, "qwen 3.5 moe", "Qwen3_5Moe"
    ),
    **{
        f"{name}ForConditionalGeneration": partial(test_llama_family.qwen_with_images, name, SEED)
        for name in test_llama_family.QWENS
    },
    "RWKV7ForCausalLM": partial(RandomRwkv7, SEED),
    "Mistral3ForConditionalGeneration": partial(
        test_llama_family.mistral_3_with_images, "ministral 3", SEED
    ),
}
_EYES: dict[str, tuple[Callable[[], Eyes], dict[str, Chat]]] = {
    "Gemma3ForConditionalGeneration": (
        partial(test_gemma3_images.eyes, 40), test_gemma3_images.CHATS
    ),
    **{
        f"{name}ForConditionalGeneration": (
            partial(test_smolvlm_images.eyes, name=name), test_smolvlm_images.CHATS
        )
        for name in _TILES
    },
}  # fmt: skip
