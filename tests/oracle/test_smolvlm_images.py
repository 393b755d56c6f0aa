"""SmolVLM with images, from a chat to the text, against Transformers: its folder, and the two files
that llama.cpp's converter makes of it. Images are cut into tiles."""

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
from transformers.models.idefics3.image_processing_pil_idefics3 import (  # noqa: E402
    Idefics3ImageProcessorPil,
)
from transformers.models.smolvlm.processing_smolvlm import DEFAULT_CHAT_TEMPLATE  # noqa: E402

from mlc_llm.serve.config import EngineConfig  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
SIDE, PATCH, SCALE = 64, 8, 2
TOKENS = (SIDE // PATCH // SCALE) ** 2
TEMPLATE = DEFAULT_CHAT_TEMPLATE.replace("<end_of_utterance>", "<|im_end|>")
WORDS = Words(
    TEMPLATE,
    {"<|fim|>": "<fake_token_around_image>", "<|tool|>": "<global-img>"},
    "<image>",
)
OLD = TEMPLATE.replace(
    "{% if message['content'] is string %}{{': ' + message['content']}}{% else %}", ""
).replace("{% endif %}<|im_end|>", "<|im_end|>")
"""As in published folders: it wants parts."""


def eyes(words: Words = WORDS, name: str = "SmolVLM") -> Eyes:
    vision = {"hidden_size": 96, "intermediate_size": 80, "num_hidden_layers": 2,
              "num_attention_heads": 4, "image_size": SIDE, "patch_size": PATCH}  # fmt: skip
    text = {"model_type": "llama", "vocab_size": SOFT_ID + 1, "hidden_size": 64,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "head_dim": 16, "intermediate_size": 96, "max_position_embeddings": 1024,
            "pad_token_id": 0, "architectures": ["VLlama3ForCausalLM"]}  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        text_config=text, vision_config=vision, scale_factor=SCALE, image_token_id=SOFT_ID,
        attn_implementation="eager", pad_token_id=0, tie_word_embeddings=False,
    )  # fmt: skip
    model = randomized(getattr(transformers, f"{name}ForConditionalGeneration"), config, 7)
    tokenizer = tokenizer_of(
        words, image_token="<image>", fake_image_token="<fake_token_around_image>",
        global_image_token="<global-img>", end_of_utterance_token="<|im_end|>",
    )  # fmt: skip
    images = Idefics3ImageProcessorPil(
        size={"longest_edge": 3 * SIDE}, max_image_size={"longest_edge": SIDE},
        image_mean=MEAN, image_std=DEVIATION,
    )  # fmt: skip
    made = transformers.Idefics3Processor(  # SmolVLM's is the same, and wants a package for videos
        images, tokenizer, image_seq_len=TOKENS, chat_template=words.template
    )
    return Eyes(model, made, words)


CHATS = {
    "tiles": chat((1, 50, 30), "What is it?"),
    "high": chat("Two: ", (2, 31, 90), "and", (3, 64, 64)),
    "none": chat("No image."),
}


def settings(**more: Any) -> EngineConfig:
    return EngineConfig(kernels="reference", verbose=False, **more)


@pytest.mark.parametrize("words", [WORDS, Words(OLD, WORDS.controls, WORDS.soft)])
def test_a_folder_gives_the_answers_of_transformers(words: Words, tmp_path: Path) -> None:
    model = eyes(words)
    model.write(tmp_path)
    check(model, tmp_path, settings(prefill_chunk_size=48), CHATS)


@needs_converter
def test_the_files_of_llama_cpp_give_the_answers_of_transformers(tmp_path: Path) -> None:
    model = eyes()
    model.write(tmp_path / "folder")
    path, tower = model.convert(tmp_path / "folder")
    check(model, path, settings(mmproj=str(tower), prefill_chunk_size=48), CHATS)
