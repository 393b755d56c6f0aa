"""Chats with images, and what an engine makes of them beside what Transformers makes of them."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from eyes import SOFT_ID, Eyes
from PIL import Image
from small_models import VARIED, WORST

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import RowImage
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.open_engine import open_engine
from mlc_llm.serve.sync_engine import SyncMLCEngine

ANSWER = 64
"""Tokens."""
LEAST_VARIED = 4
"""Different tokens of each answer."""
Chat = list[dict[str, Any]]


class Ours:
    """An engine that writes texts, and one whose logits are those of one step."""

    def __init__(self, path: Path, config: EngineConfig) -> None:
        """config: of the engine that writes texts."""
        self.engine = SyncMLCEngine(str(path), engine_config=config)
        whole = replace(config, model=str(path), mode="local", prefill_chunk_size=1024)
        self.opened = open_engine(whole, "cpu")

    def prompt(self, messages: Chat) -> tuple[list[int], list[RowImage]]:
        """Token ids, those of images negative, and the pictures behind these."""
        data = self.engine.chat_data(of_openai(messages))
        request = self.engine.create_request("prompt", data, GenerationConfig(max_tokens=1))
        found = self.opened.core.admission.prepare(request)
        assert found.error is None
        images = [RowImage(one.first, 0, one.picture.tokens, one.picture) for one in found.images]
        return found.prompt, images

    def logits(self, tokens: list[int], images: list[RowImage]) -> npt.NDArray[np.float32]:
        runner = self.opened.runners[0]
        assert isinstance(runner, ModelRunner)
        return runner.logits(tokens, images=images)

    def text(self, messages: Chat) -> str:
        """The greedy answer."""
        settings = GenerationConfig(
            max_tokens=ANSWER, temperature=0.0, debug_config={"ignore_eos": True}
        )
        data = self.engine.chat_data(of_openai(messages))
        found: str = self.engine.generate([data], settings)[0][0][0]
        return found


@dataclass(frozen=True)
class Compared:
    """One chat."""

    error: float
    """The largest of a logit, as a part of the largest logit."""
    answer: list[int]
    """Of Transformers."""
    is_same: bool
    """Whether the engine writes the same text."""


def picture(seed: int, size: tuple[int, int] = (50, 30)) -> Any:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def png(image: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def chat(*parts: str | int | tuple[int, int, int]) -> Chat:
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


def of_openai(messages: Chat) -> Chat:
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


def inputs_of(model: Eyes, messages: Chat) -> dict[str, Any]:
    images = [one["picture"] for one in messages[0]["content"] if one["type"] == "image"]
    plain = [
        {**message, "content": [
            {"type": "image"} if one["type"] == "image" else one for one in message["content"]
        ]}
        for message in messages
    ]  # fmt: skip
    return model.inputs(plain, images)


def compared(model: Eyes, ours: Ours, messages: Chat) -> Compared:
    """Raises AssertionError for another prompt than that of Transformers."""
    inputs = inputs_of(model, messages)
    tokens, images = ours.prompt(messages)
    assert [SOFT_ID if one < 0 else one for one in tokens] == inputs["input_ids"][0].tolist()
    exact, mine = model.logits(inputs), ours.logits(tokens, images)
    error = float(np.abs(mine - exact[:, : mine.shape[1]]).max() / np.abs(exact).max())
    answer = model.greedy(inputs, ANSWER)
    is_same = ours.text(messages) == ours.engine.tokenizer.decode(answer)
    return Compared(error, answer, is_same)


def check(model: Eyes, path: Path, config: EngineConfig, chats: dict[str, Chat]) -> None:
    """Prompts, logits and greedy texts of chats. config: see `Ours`."""
    ours = Ours(path, config)
    varied: list[int] = []
    for name, messages in chats.items():
        found = compared(model, ours, messages)
        print(f"{name}: largest error {found.error:.1e} of the largest logit")
        assert found.error <= WORST
        assert found.is_same
        varied.append(len(set(found.answer)))
    assert min(varied) >= LEAST_VARIED and max(varied) >= VARIED
