"""Random small models of Transformers that read images, their folders and files, and their answers
to the same prompts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from converted import converted_eyes
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny_folders import tokenizer_files

from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata

CONTROLS = {"<|fim|>": "<start_of_image>", "<|tool|>": "<end_of_image>"}
SOFT, SOFT_ID = "<image_soft_token>", 300
"""Transformers' token for each vector of an image; it is the last one."""
MEAN, DEVIATION = [0.5, 0.4, 0.3], [0.5, 0.6, 0.7]


@dataclass(frozen=True)
class Eyes:
    """A model, and how Transformers makes its inputs."""

    model: Any
    processor: Any
    template: str

    def write(self, folder: Path) -> None:
        """A folder as Transformers saves it, with the tokenizer of bytes."""
        self.model.save_pretrained(folder)
        self.processor.image_processor.save_pretrained(folder)
        for name, text in texts(self.template).items():
            (folder / name).write_text(text, encoding="utf-8")

    def convert(self, folder: Path) -> tuple[Path, Path]:
        """The two files of llama.cpp's converter, of a folder that was written. It knows the names
        of tensors that Transformers 4 has written, as published folders have them."""
        file = folder / "model.safetensors"
        tensors = load_file(file)
        old = {_old_name(name): one for name, one in tensors.items()}
        save_file(old, file, {"format": "pt"})
        return converted_eyes(folder, vocabulary(self.template))

    def inputs(self, messages: Sequence[dict[str, Any]], images: Sequence[Any]) -> dict[str, Any]:
        """As the processor makes them."""
        text = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        found = self.processor(text=text, images=list(images) or None, return_tensors="pt")
        return dict(found)

    def logits(self, inputs: dict[str, Any]) -> npt.NDArray[np.float64]:
        with torch.no_grad():
            return np.asarray(self.model(**inputs).logits[0].double().numpy(), np.float64)

    def greedy(self, inputs: dict[str, Any], count: int, more: Callable[[Any], Any]) -> list[int]:
        """more: inputs of one more token, beside its id."""
        found: list[int] = []
        while len(found) < count:
            best = int(self.logits(inputs)[-1].argmax())
            found.append(best)
            inputs = more(inputs) | {
                "input_ids": torch.cat([inputs["input_ids"], torch.tensor([[best]])], 1)
            }
        return found


def _old_name(name: str) -> str:
    tower = "vision_tower."
    return name.replace(tower, f"{tower}vision_model.") if f"{tower}vision" not in name else name


def texts(template: str) -> dict[str, str]:
    """The files of the tokenizer of bytes, with tokens for images."""
    found = tokenizer_files()
    spec = json.loads(found["tokenizer.json"])
    for one in spec["added_tokens"]:
        one["content"] = CONTROLS.get(one["content"], one["content"])
    vocab = spec["model"]["vocab"]
    spec["model"]["vocab"] = {CONTROLS.get(text, text): i for text, i in vocab.items()}
    soft = {**spec["added_tokens"][-1], "id": SOFT_ID, "content": SOFT}
    spec["added_tokens"].append(soft)
    config = json.loads(found["tokenizer_config.json"]) | {"chat_template": template}
    return {"tokenizer.json": json.dumps(spec), "tokenizer_config.json": json.dumps(config)}


def vocabulary(template: str) -> dict[str, Any]:
    """The same in a GGUF file."""
    found: dict[str, Any] = byte_tokenizer_metadata()
    tokens = [CONTROLS.get(one, one) for one in found["tokenizer.ggml.tokens"]]
    kinds = [*found["tokenizer.ggml.token_type"], 3]
    return found | {
        "tokenizer.ggml.tokens": [*tokens, SOFT],
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.chat_template": template,
    }


def tokenizer_of(template: str, **names: str) -> Any:
    """Of Transformers. names: of tokens that its processors ask for."""
    made = transformers.tokenization_utils_tokenizers.TokenizersBackend
    spec = texts(template)["tokenizer.json"]
    from tokenizers import Tokenizer

    tokenizer = made(tokenizer_object=Tokenizer.from_str(spec), extra_special_tokens=names)
    tokenizer.chat_template = template
    return tokenizer


def picture(seed: int, size: tuple[int, int] = (50, 30)) -> Any:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()
