"""The calls of MLC LLM's own tests of images in prompts, with a tiny random model.

They are those of `test_serve_engine_image.py` and `test_data_url_validation.py` there. Its images
come from a host on the internet: here that takes `allow_hosts`, and without it is refused.
"""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from mlc_llm.protocol.error_protocol import BadRequestError  # noqa: E402
from mlc_llm.protocol.generation_config import GenerationConfig  # noqa: E402
from mlc_llm.serve import data  # noqa: E402
from mlc_llm.serve.sync_engine import EngineConfig, SyncMLCEngine  # noqa: E402
from mlc_llm.testing.tiny_eyes import IMAGE_TOKENS, write_tiny_eyes  # noqa: E402

CONFIG = {"model_type": "llava", "model_config": {"vision_config": {"image_size": 336}}}
"""Of `mlc-chat-config.json`: callers give it, and our engine does not need it."""


def image_url(seed: int) -> str:
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def image(seed: int) -> data.ImageData:
    return data.ImageData.from_url(image_url(seed), CONFIG)


@pytest.mark.slow
def test_engine_generate(tmp_path: Path) -> None:
    (tmp_path / "mlc-chat-config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    with open(tmp_path / "mlc-chat-config.json", encoding="utf-8") as file:
        config = json.load(file)
    engine = SyncMLCEngine(
        model=str(write_tiny_eyes(tmp_path).model),
        mode="server",
        engine_config=EngineConfig(max_total_sequence_length=4096, kernels="reference"),
    )
    prompts: list[Any] = [
        [
            data.TextData("USER: "),
            data.ImageData.from_url(image_url(1), config),
            data.TextData("\nWhat does this image represent? ASSISTANT:"),
        ],
        [
            data.TextData("USER: "),
            data.ImageData.from_url(image_url(2), config),
            data.TextData("\nWhat does this image represent? ASSISTANT:"),
        ],
        [data.TextData("USER: What is the meaning of life? ASSISTANT:")],
    ]
    debug: Any = {"ignore_eos": True}
    asked = GenerationConfig(temperature=0.0, max_tokens=16, stop_token_ids=[2], debug_config=debug)
    output_texts, logprobs = engine.generate(prompts, asked)
    assert logprobs == [None] * 3
    assert [len(outputs) for outputs in output_texts] == [1, 1, 1]
    assert all(isinstance(outputs[0], str) and outputs[0] for outputs in output_texts)
    assert output_texts[0] != output_texts[1], "the image changes nothing"
    # An image of so many vectors, as callers may say, and of another number.
    pixels = np.zeros((1, 30, 50, 3), np.uint8)
    engine.generate([[data.ImageData(pixels, IMAGE_TOKENS)]], asked)
    with pytest.raises(BadRequestError, match="embed_size"):
        engine.generate([[data.ImageData(pixels, IMAGE_TOKENS + 1)]], asked)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("data:image/png", "comma"),
        ("data:image/png;base64,AAAAA", "base64"),
        ("http://example.com/corrupt.png", "allow_hosts"),
        ("ftp://example.com/a.png", "data: addresses"),
        ("view.jpg", "data: addresses"),
    ],
)
def test_what_is_no_image_address(url: str, words: str) -> None:
    with pytest.raises(BadRequestError, match=words):
        data.ImageData.from_url(url, CONFIG)


def test_an_image_address() -> None:
    assert image(1) == image(1) != image(2)
