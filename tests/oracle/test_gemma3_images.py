"""Gemma 3 with images, from a chat to the text, against Transformers: its folder, and the two files
that llama.cpp's converter makes of it."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
transformers = pytest.importorskip("transformers", reason="the oracle extra is not installed")
pytest.importorskip("PIL", reason="the extra `images` is not installed")

from converted import needs_converter  # noqa: E402
from eyes import DEVIATION, MEAN, SOFT, SOFT_ID, Eyes, picture, png, tokenizer_of  # noqa: E402
from small_models import VARIED, WORST, randomized  # noqa: E402
from transformers.models.gemma3.image_processing_pil_gemma3 import (  # noqa: E402
    Gemma3ImageProcessorPil,
)

from mlc_llm.protocol.generation_config import GenerationConfig  # noqa: E402
from mlc_llm.runtime.batch import RowImage  # noqa: E402
from mlc_llm.runtime.model_runner import ModelRunner  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine  # noqa: E402
from mlc_llm.serve.sync_engine import SyncMLCEngine  # noqa: E402
from mlc_llm.testing.tiny_eyes import CHAT_TEMPLATE  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
TOKENS, ANSWER = 16, 64
TEMPLATE = CHAT_TEMPLATE.replace("{{ part['text'] }}", "{{ part['text'] | trim }}")


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
        TEMPLATE, image_token=SOFT, boi_token="<start_of_image>", eoi_token="<end_of_image>"
    )
    images = Gemma3ImageProcessorPil(
        size={"height": 64, "width": 64}, image_mean=MEAN, image_std=DEVIATION,
        image_seq_length=TOKENS,
    )  # fmt: skip
    made = transformers.Gemma3Processor(images, tokenizer, TEMPLATE, image_seq_length=TOKENS)
    return Eyes(model, made, TEMPLATE)


def chat(*parts: str | int) -> list[dict[str, Any]]:
    """A message of texts and of pictures by seed, as Transformers and OpenAI have it."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            data = base64.b64encode(png(picture(part))).decode()
            content.append({"type": "image", "seed": part, "data": data})
    return [{"role": "user", "content": content}]


def of_openai(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same with `image_url`."""
    found = []
    for message in messages:
        parts = [
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one['data']}"}}
            if one["type"] == "image"
            else one
            for one in message["content"]
        ]
        found.append({**message, "content": parts})
    return found


CHATS = {
    "one": chat("Look: ", 1, " what is it?"),
    "two": chat(2, "and", 3, " differ?"),
    "none": chat("No image."),
}


def more(inputs: dict[str, Any]) -> dict[str, Any]:
    longer = {
        name: torch.cat([inputs[name], torch.full((1, 1), value)], 1)
        for name, value in (("attention_mask", 1), ("token_type_ids", 0))
    }
    return {**inputs, **longer}


def inputs_of(model: Eyes, messages: list[dict[str, Any]]) -> dict[str, Any]:
    seeds = [one["seed"] for one in messages[0]["content"] if one["type"] == "image"]
    plain = [
        {**message, "content": [
            {"type": "image"} if one["type"] == "image" else one for one in message["content"]
        ]}
        for message in messages
    ]  # fmt: skip
    return model.inputs(plain, [picture(seed) for seed in seeds])


def check(model: Eyes, path: Path, config: EngineConfig) -> None:
    """Prompts, logits and greedy texts of all chats, in chunks and whole."""
    engine = SyncMLCEngine(str(path), engine_config=config)
    whole = replace(config, model=str(path), mode="local", prefill_chunk_size=None)
    opened = open_engine(whole, "cpu")
    for name, messages in CHATS.items():
        check_chat(model, engine, opened, messages, name)


def check_chat(
    model: Eyes,
    engine: SyncMLCEngine,
    opened: OpenEngine,
    messages: list[dict[str, Any]],
    name: str,
) -> None:
    inputs = inputs_of(model, messages)
    prompt = engine.chat_data(of_openai(messages))
    prepared = opened.core.admission.prepare(
        engine.create_request("logits", prompt, GenerationConfig(max_tokens=1))
    )
    assert prepared.error is None
    wanted = inputs["input_ids"][0].tolist()
    assert [SOFT_ID if one < 0 else one for one in prepared.prompt] == wanted
    images = [RowImage(one.first, 0, one.picture.tokens, one.picture) for one in prepared.images]
    exact, runner = model.logits(inputs), opened.runners[0]
    assert isinstance(runner, ModelRunner)
    mine = runner.logits(prepared.prompt, images=images)
    error = float(np.abs(mine - exact[:, : mine.shape[1]]).max() / np.abs(exact).max())
    print(f"{name}: largest error {error:.1e} of the largest logit")
    assert error <= WORST
    answer = model.greedy(inputs, ANSWER, more)
    assert len(set(answer)) >= VARIED
    settings = GenerationConfig(
        max_tokens=ANSWER, temperature=0.0, debug_config={"ignore_eos": True}
    )
    texts, _ = engine.generate([prompt], settings)
    assert texts[0][0] == engine.tokenizer.decode(answer)


def settings(kernels: str | None, **more: Any) -> EngineConfig:
    return EngineConfig(kernels=kernels, verbose=False, **more)


@pytest.mark.parametrize("window", [24, 40])
def test_a_folder_gives_the_answers_of_transformers(window: int, tmp_path: Path) -> None:
    model = eyes(window)
    model.write(tmp_path)
    check(model, tmp_path, settings("reference", prefill_chunk_size=32))


@needs_converter
def test_the_files_of_llama_cpp_give_the_answers_of_transformers(tmp_path: Path) -> None:
    model = eyes(40)
    model.write(tmp_path / "folder")
    path, tower = model.convert(tmp_path / "folder")
    check(model, path, settings("reference", mmproj=str(tower), prefill_chunk_size=64))
