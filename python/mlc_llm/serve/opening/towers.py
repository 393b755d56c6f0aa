"""The towers of images that are known: their files, whether they fit a model, their runner."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from mlc_llm.compiler.jit import prepare
from mlc_llm.errors import InvalidField, MLCError, UserError
from mlc_llm.images.pixels import read_pixel_form
from mlc_llm.images.reader import FAKE, GLOBAL, ImageReader, TileReader
from mlc_llm.json_file import read_json_object
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.huggingface import CONFIG, MAX_JSON_BYTES, HuggingFaceFolder
from mlc_llm.model_files.tower import TowerFiles, tower_of_folder, tower_of_gguf
from mlc_llm.models.image_spec import Sight
from mlc_llm.models.mmproj import CLASSES, mmproj_pixels, projector_of
from mlc_llm.runtime.image_runner import ImageRunner
from mlc_llm.runtime.packed_file import BrokenParams
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening.bundle import ModelBundle, Vision

_log = logging.getLogger(__name__)
_CONTROL = re.compile(r"<[^<>]+>")
PROCESSORS = ("preprocessor_config.json", "processor_config.json")


class _Family(NamedTuple):
    """What a model does with images, by the name of llama.cpp's projector."""

    architecture: str
    """Of the language model, as GGUF names it."""
    sight: Sight
    mark: str
    before: str
    behind: str
    reader: type[ImageReader] = ImageReader


FAMILIES: Mapping[str, _Family] = {
    "gemma3": _Family(
        "gemma3", "whole", "<start_of_image>", "\n\n<start_of_image>", "<end_of_image>\n\n"
    ),
    "idefics3": _Family("llama", "before", "<image>", f"{FAKE}{GLOBAL}", FAKE, TileReader),
}


def tower_runner(vision: Vision, config: EngineConfig) -> ImageRunner:
    """The tower, compiled for this machine. Raises UserError, CompileError."""
    for is_second in (False, True):
        prepared = prepare(vision.files, config.kernels, rebuild=is_second)
        try:
            return ImageRunner(prepared.library, prepared.weights)
        except (BrokenLibrary, BrokenParams) as error:
            _log.warning("the cached tower is broken and is made again: %s", error)
    raise MLCError("a tower that was made just now cannot be loaded")


def of_file(path: Path, bundle: ModelBundle, config: EngineConfig) -> Vision:
    """Of an `mmproj` file. Raises UserError with its name."""
    file = GGUFFile.open(path)
    towers = tower_of_gguf(file)
    try:
        family = projector_of(file.metadata)
        return _fitting(family, towers, mmproj_pixels(file.metadata), bundle, config)
    except InvalidField:
        raise
    except UserError as error:
        raise UserError(f"{path}: {error}") from None


def of_folder(path: Path, bundle: ModelBundle, config: EngineConfig) -> Vision | None:
    """Of a Hugging Face folder; None if its class has no tower that is known here."""
    if not (path / CONFIG).is_file():
        return None
    said = read_json_object(path / CONFIG, MAX_JSON_BYTES)
    classes = said.get("architectures")
    family = CLASSES.get(str(classes[0])) if isinstance(classes, list) and classes else None
    if family is None:
        return None
    form = next((path / name for name in PROCESSORS if (path / name).is_file()), None)
    if form is None:
        raise UserError(f"{path}: there is no {PROCESSORS[0]}, which says how images are prepared")
    pixels = read_json_object(form, MAX_JSON_BYTES)
    inner = pixels.get("image_processor")
    given = inner if isinstance(inner, Mapping) else pixels
    towers = tower_of_folder(HuggingFaceFolder.open(path))
    return _fitting(family, towers, given, bundle, config)


def _fitting(
    name: str,
    towers: TowerFiles,
    pixels: Mapping[str, object],
    bundle: ModelBundle,
    config: EngineConfig,
) -> Vision:
    """Raises InvalidField for a tower that does not fit the model."""
    assert bundle.files is not None
    family, spec, vision = FAMILIES[name], bundle.files.plan().spec, towers.vision
    if spec.architecture != family.architecture:
        words = (
            f"it is for models of {family.architecture}, and {bundle.name} is {spec.architecture}"
        )
        raise InvalidField("mmproj", towers.path.name, words)
    if vision.width != spec.hidden:
        words = f"its vectors have {vision.width} numbers, and those of {bundle.name} {spec.hidden}"
        raise InvalidField("mmproj", towers.path.name, f"{words}: it is for another model")
    controls = bundle.tokenizer.special_tokens
    for text in (family.mark, *_CONTROL.findall(family.before + family.behind)):
        if text not in controls:
            words = f"the tokenizer of {bundle.name} has no control token {text}"
            raise InvalidField("mmproj", towers.path.name, words)
    form = read_pixel_form(pixels)
    side = vision.side * vision.patch
    if not side <= form.target.width < side + vision.patch:
        words = f"images get {form.target.width} pixels in a row, and the tower wants {side}"
        raise InvalidField("mmproj", towers.path.name, words)
    reader = family.reader(
        form, vision.patch, vision.tokens, family.mark, family.before, family.behind,
        tuple(config.allow_image_hosts),
    )  # fmt: skip
    return Vision(towers, reader, family.sight)
