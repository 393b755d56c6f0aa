"""Random small models of Transformers that read images, their folders and files, and what they
compute."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from converted import converted_eyes
from safetensors.torch import load_file, save_file
from tiny_folders import tokenizer_files

from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata

SOFT_ID = 300
"""Of Transformers' token for each vector of an image; it is the last one."""
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

    def vectors(self, inputs: dict[str, Any]) -> npt.NDArray[np.float64]:
        """Those that the language model takes for images: [tokens of all images, width]."""
        pixels = {name: one for name, one in inputs.items() if name.startswith("pixel")}
        with torch.no_grad():
            found = self.model.model.get_image_features(**pixels).pooler_output
        return np.asarray(torch.cat([*found]).double().numpy(), np.float64)

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
