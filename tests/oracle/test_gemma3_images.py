"""Gemma 3 with images, from a chat to the text, against Transformers: its folder, and the two files
that llama.cpp's converter makes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytest.importorskip("PIL", reason="the extra `images` is not installed")

from converted import needs_converter  # noqa: E402
from eyes import DEVIATION, MEAN, SOFT_ID, Eyes, Words, tokenizer_of  # noqa: E402
from image_chats import chat, check  # noqa: E402
from small_models import randomized  # noqa: E402
from transformers.models.gemma3.image_processing_pil_gemma3 import (  # noqa: E402
    Gemma3ImageProcessorPil,
)

from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.testing.tiny_eyes import CHAT_TEMPLATE  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
TOKENS = 16
WORDS = Words(
    CHAT_TEMPLATE.replace("{{ part['text'] }}", "{{ part['text'] | trim }}"),
    {"<|fim|>": "<start_of_image>", "<|tool|>": "<end_of_image>"},
    "<image_soft_token>",
)


def eyes(window: int) -> Eyes:
    vision = {"hidden_size": 96, "intermediate_size": 80, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": 64, "patch_size": 8,
              "vision_use_head": False}  # fmt: skip
    text = {"vocab_size": SOFT_ID + 1, "hidden_size": 64, "num_hidden_layers": 6,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
            "intermediate_size": 96, "sliding_window": window, "max_position_embeddings": 512,
            "query_pre_attn_scalar": 32}  # fmt: skip
    config = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=TOKENS,
        image_token_index=SOFT_ID, boi_token_index=298, eoi_token_index=299,
        attn_implementation="eager",
    )  # fmt: skip
    model = randomized(transformers.Gemma3ForConditionalGeneration, config, 3)
    half = model.model.multi_modal_projector.mm_input_projection_weight
    with torch.no_grad():
        half.copy_(half.half().float())  # as converters write it
    tokenizer = tokenizer_of(
        WORDS, image_token=WORDS.soft, boi_token="<start_of_image>", eoi_token="<end_of_image>"
    )
    images = Gemma3ImageProcessorPil(
        size={"height": 64, "width": 64}, image_mean=MEAN, image_std=DEVIATION,
        image_seq_length=TOKENS,
    )  # fmt: skip
    made = transformers.Gemma3Processor(images, tokenizer, WORDS.template, image_seq_length=TOKENS)
    return Eyes(model, made, WORDS)


CHATS = {
    "one": chat("Look: ", 1, " what is it?"),
    "two": chat(2, "and", 3, " differ?"),
    "none": chat("No image."),
}


def settings(**more: Any) -> EngineConfig:
    return EngineConfig(kernels="reference", verbose=False, **more)


@pytest.mark.parametrize("window", [24, 40])
def test_a_folder_gives_the_answers_of_transformers(window: int, tmp_path: Path) -> None:
    model = eyes(window)
    model.write(tmp_path)
    check(model, tmp_path, settings(prefill_chunk_size=32), CHATS)


@needs_converter
def test_the_files_of_llama_cpp_give_the_answers_of_transformers(tmp_path: Path) -> None:
    model = eyes(40)
    model.write(tmp_path / "folder")
    path, tower = model.convert(tmp_path / "folder")
    check(model, path, settings(mmproj=str(tower), prefill_chunk_size=64), CHATS)
