"""What tests of images run in processes where the stand-in is CUDA."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kept
import numpy as np
import numpy.typing as npt
from emulated_models import emulated_into
from fake_cuda import Fake
from model_programs import TOKENS, engine

from mlc_llm.compiler import build
from mlc_llm.runtime.batch import RowImage
from mlc_llm.runtime.image_runner import ImageRunner
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.data import ImageData, TextData

CHUNK = 24
"""Tokens of a step: fewer than two images have."""
ASKED = {"max_tokens": 8, "temperature": 0.0}


@dataclass(frozen=True)
class RandomPatches:
    """The numbers of an image, as `runtime.batch.Picture` has them."""

    seed: int
    count: int
    numbers: int

    @property
    def digest(self) -> bytes:
        return str(self.seed).encode()

    @property
    def tokens(self) -> int:
        return self.count // 4

    def patches(self) -> npt.NDArray[np.float32]:
        rng = np.random.default_rng(self.seed)
        return rng.uniform(-1, 1, (self.count, self.numbers)).astype(np.float32)


def vectors_of(runner: ImageRunner, count: int, numbers: int) -> npt.NDArray[np.float32]:
    """Those of three images."""
    return np.stack([runner.vectors(RandomPatches(i, count, numbers)) for i in range(3)])


def tower(library: str, weights: str, out: str, count: int, numbers: int) -> None:
    """Saves the vectors of images, which are the same when they are computed again."""
    runner = ImageRunner(Path(library), Path(weights))
    found = vectors_of(runner, count, numbers)
    runner._kept.clear()
    assert vectors_of(runner, count, numbers).tobytes() == found.tobytes()
    assert runner.num_computed == 6
    np.save(out, found)


def seen_logits(paths: Sequence[str], count: int, numbers: int) -> npt.NDArray[np.float32]:
    """Of text with two images, the second one before the last step; steps of two sizes give the
    same bits. paths: library and weights of the model, and of its tower."""
    library, weights, *of_tower = map(Path, paths)
    runner = ModelRunner(
        library, weights, tower=ImageRunner(*of_tower),
        num_pages=24, max_num_sequence=4, max_batch_tokens=64, context_window=512,
    )  # fmt: skip
    images = []
    for i, at in enumerate((3, 21)):
        picture = RandomPatches(i, count, numbers)
        images.append(RowImage(at, 0, picture.tokens, picture))
    found = [runner.logits(TOKENS[:70], chunk=chunk, images=images) for chunk in (64, 40)]
    assert found[0].tobytes() == found[1].tobytes(), "the size of a step matters"
    assert np.abs(runner.logits(TOKENS[:70]) - found[0])[30:].max() > 0.1, "nothing is seen"
    runner.check_integrity()
    return found[0]


def save_logits(out: str, count: int, numbers: int, *paths: str) -> None:
    np.save(out, seen_logits(paths, count, numbers))


def seeing(model: str, root: str) -> Any:
    """An engine whose libraries are compiled for the emulator. root: of what tests keep."""
    kept._state["root"] = Path(root)
    build.build_library = emulated_into
    return engine(model, None, "cuda", prefill_chunk_size=CHUNK)


def opened(model: str, root: str) -> None:
    """Compiles what `print_texts` needs."""
    seeing(model, root)


def print_texts(model: str, root: str) -> None:
    """Prints the texts of an engine, how often steps were repeated, and what is alive when it is
    gone."""
    fake, made = Fake(), seeing(model, root)
    fake.log()
    found = texts(made)
    repeated = sum(line.startswith("cudaGraphLaunch") for line in fake.log())
    del made
    gc.collect()
    print(json.dumps([found, repeated, fake.alive()]))


def texts(made: Any) -> list[list[str]]:
    """Of prompts with images and without, alone and together."""
    first, second = ImageData(png(1)), ImageData(png(2))
    prompts = [
        [first, TextData("a")],
        [second, TextData("a")],
        [TextData("look"), first, TextData("and"), second, TextData("b")],
        [TextData("only text")],
    ]
    alone = [made.generate([one], ASKED)[0][0][0] for one in prompts]
    made.reset()
    return [alone, [one for (one,) in made.generate(prompts, ASKED)[0]]]


def png(seed: int) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(seed).integers(0, 256, (30, 50, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()
