"""Random small models of Transformers that read images, their folders and files, and their answers
to the same prompts."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from converted import converted_eyes
from PIL import Image
from safetensors.torch import load_file, save_file
from small_models import VARIED, WORST
from tiny_folders import tokenizer_files

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import RowImage
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.open_engine import OpenEngine, open_engine
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata

SOFT_ID = 300
"""Of Transformers' token for each vector of an image; it is the last one."""
ANSWER = 64
"""Tokens."""
LEAST_VARIED = 4
"""Different tokens of each answer."""
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.5, 0.6, 0.7]


@dataclass(frozen=True)
class Words:
    """What its tokenizer has beside bytes."""

    template: str
    controls: dict[str, str]
    """Names of control tokens in the place of others."""
    soft: str
    """The token with `SOFT_ID`."""


@dataclass(frozen=True)
class Eyes:
    """A model, and how Transformers makes its inputs."""

    model: Any
    processor: Any
    words: Words

    def write(self, folder: Path) -> None:
        """A folder as Transformers saves it, with the tokenizer of bytes."""
        self.model.save_pretrained(folder)
        self.processor.image_processor.save_pretrained(folder)
        for name, text in texts(self.words).items():
            (folder / name).write_text(text, encoding="utf-8")

    def convert(self, folder: Path) -> tuple[Path, Path]:
        """The two files of llama.cpp's converter, of a folder that was written. It knows the names
        of tensors that Transformers 4 has written, as published folders have them."""
        with_old_names(folder / "model.safetensors")
        return converted_eyes(folder, vocabulary(self.words))

    def inputs(self, messages: Sequence[dict[str, Any]], images: Sequence[Any]) -> dict[str, Any]:
        """As the processor makes them."""
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        found = self.processor(text=text, images=list(images) or None, return_tensors="pt")
        return dict(found)

    def logits(self, inputs: dict[str, Any]) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            return np.asarray(self.model(**inputs).logits[0].double().numpy(), np.float64)

    def greedy(self, inputs: dict[str, Any], count: int) -> list[int]:
        found: list[int] = []
        while len(found) < count:
            best = int(self.logits(inputs)[-1].argmax())
            found.append(best)
            one_more = {"input_ids": best, "attention_mask": 1, "token_type_ids": 0}
            inputs = inputs | {
                name: torch.cat([inputs[name], torch.tensor([[value]])], 1)
                for name, value in one_more.items()
                if name in inputs
            }
        return found


def with_old_names(file: Path) -> None:
    """Gives tensors the names that Transformers 4 has written."""
    old = {_old_name(name): one for name, one in load_file(file).items()}
    save_file(old, file, {"format": "pt"})


def _old_name(name: str) -> str:
    tower = "vision_tower."
    return name.replace(tower, f"{tower}vision_model.") if f"{tower}vision" not in name else name


def texts(words: Words) -> dict[str, str]:
    """The files of the tokenizer of bytes, with tokens for images."""
    found = tokenizer_files()
    spec = json.loads(found["tokenizer.json"])
    for one in spec["added_tokens"]:
        one["content"] = words.controls.get(one["content"], one["content"])
    vocab = spec["model"]["vocab"]
    spec["model"]["vocab"] = {words.controls.get(text, text): i for text, i in vocab.items()}
    soft = {**spec["added_tokens"][-1], "id": SOFT_ID, "content": words.soft}
    spec["added_tokens"].append(soft)
    config = json.loads(found["tokenizer_config.json"]) | {"chat_template": words.template}
    return {"tokenizer.json": json.dumps(spec), "tokenizer_config.json": json.dumps(config)}


def vocabulary(words: Words) -> dict[str, Any]:
    """The same in a GGUF file."""
    found: dict[str, Any] = byte_tokenizer_metadata()
    tokens = [words.controls.get(one, one) for one in found["tokenizer.ggml.tokens"]]
    kinds = [*found["tokenizer.ggml.token_type"], 3]
    return found | {
        "tokenizer.ggml.tokens": [*tokens, words.soft],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.chat_template": words.template,
    }


def tokenizer_of(words: Words, **names: str) -> Any:
    """Of Transformers. names: of tokens that its processors ask for."""
    made = transformers.tokenization_utils_tokenizers.TokenizersBackend
    spec = texts(words)["tokenizer.json"]
    from tokenizers import Tokenizer

    tokenizer = made(tokenizer_object=Tokenizer.from_str(spec), extra_special_tokens=names)
    tokenizer.chat_template = words.template
    return tokenizer


def picture(seed: int, size: tuple[int, int] = (50, 30)) -> Any:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def chat(*parts: str | int | tuple[int, int, int]) -> list[dict[str, Any]]:
    """A message of texts and of pictures, by seed or by seed and size."""
    content: list[dict[str, Any]] = []
    for part in parts:
        if isinstance(part, str):
            content.append({"type": "text", "text": part})
        else:
            seed, *size = (part,) if isinstance(part, int) else part
            image = picture(seed, (size[0], size[1]) if size else (50, 30))
            data = base64.b64encode(png(image)).decode()
            content.append({"type": "image", "picture": image, "data": data})
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


def inputs_of(model: Eyes, messages: list[dict[str, Any]]) -> dict[str, Any]:
    images = [one["picture"] for one in messages[0]["content"] if one["type"] == "image"]
    plain = [
        {**message, "content": [
            {"type": "image"} if one["type"] == "image" else one for one in message["content"]
        ]}
        for message in messages
    ]  # fmt: skip
    return model.inputs(plain, images)


def check(
    model: Eyes, path: Path, config: EngineConfig, chats: dict[str, list[dict[str, Any]]]
) -> None:
    """Prompts, logits and greedy texts of chats. config: of the engine that writes texts; logits
    are those of one step."""
    engine = SyncMLCEngine(str(path), engine_config=config)
    whole = replace(config, model=str(path), mode="local", prefill_chunk_size=1024)
    opened = open_engine(whole, "cpu")
    varied: list[int] = []
    for name, messages in chats.items():
        varied.append(check_chat(model, engine, opened, messages, name))
    assert max(varied) >= VARIED


def check_chat(
    model: Eyes,
    engine: SyncMLCEngine,
    opened: OpenEngine,
    messages: list[dict[str, Any]],
    name: str,
) -> int:
    """How many different tokens its answer has."""
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
    answer = model.greedy(inputs, ANSWER)
    assert len(set(answer)) >= LEAST_VARIED
    settings = GenerationConfig(
        max_tokens=ANSWER, temperature=0.0, debug_config={"ignore_eos": True}
    )
    texts, _ = engine.generate([prompt], settings)
    assert texts[0][0] == engine.tokenizer.decode(answer)
    return len(set(answer))
