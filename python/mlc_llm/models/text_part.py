"""The language model of a model that also reads images, in a Hugging Face folder. Images are not
read, so their tensors are not needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from mlc_llm.models.config_values import ConfigValues
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.tensor_names import Either, FolderNames, Microscaled, Origin, Stacked
from mlc_llm.models.weight_plan import Tensors, WeightPlan

_PARTS = (
    "vision_tower",
    "multi_modal_projector",
    "audio_tower",
    "embed_vision",
    "embed_audio",
    "visual",
    "vision_model",
    "connector",
)
IMAGES = tuple(f"{start}{part}.{{any}}" for start in ("", "model.") for part in _PARTS)
"""Tensors of images and sound, where Transformers 4 and 5 have them."""

_STARTS = ("model.language_model.", "model.text_model.")


class Reader(Protocol):
    """What the file of an architecture has. It may also have `TIED`, False if a `config.json` that
    does not say it means that the head is not the embedding; and `FLAT`, True if older folders
    have one object for all, and names as if there were no images."""

    HF_NAMES: FolderNames

    def read_gguf(self, metadata: Mapping[str, object], tensors: Tensors) -> WeightPlan: ...

    def read_config(self, config: Mapping[str, object]) -> ModelSpec: ...


class TextPart:
    """Reads such a model as the architecture of its language model does."""

    def __init__(self, of: Reader) -> None:
        """of: the language model's; a GGUF file has nothing else."""
        self.read_gguf, self._read_config = of.read_gguf, of.read_config
        self._tied: bool = getattr(of, "TIED", True)
        self._is_flat: bool = getattr(of, "FLAT", False)
        starts = (*_STARTS, "model.") if self._is_flat else _STARTS
        origins = {gguf: _inside(origin, starts) for gguf, origin in of.HF_NAMES.origins.items()}
        self.HF_NAMES = replace(of.HF_NAMES, origins=origins).ignoring(*IMAGES)

    def read_config(self, config: Mapping[str, object]) -> ModelSpec:
        """Raises UnsupportedModel or ModelFileError naming the field at fault."""
        values, text = ConfigValues(config), config.get("text_config")
        if text is None and self._is_flat:
            text = config
        if not isinstance(text, Mapping):
            raise values.wrong("text_config", text, "an object")
        tied = values.flag("tie_word_embeddings", self._tied)
        if not self._tied:  # files of before Transformers 5 may say it of the part alone
            tied = tied or ConfigValues(text).flag("tie_word_embeddings", False)
        return self._read_config({**text, "tie_word_embeddings": tied})


def _inside(origin: Origin, starts: Sequence[str]) -> Origin:
    """The same tensor where the language model is a part of another one. starts: what may stand in
    place of "model."."""
    if isinstance(origin, Either):
        return Either(tuple(_inside(one, starts) for one in origin.origins))
    assert not isinstance(origin, Microscaled), "no such model has blocks of 4 bits"
    assert not isinstance(origin, Stacked), "no such model has vectors that become rows"
    if not isinstance(origin, str):
        of = _inside(origin.of, starts)
        if isinstance(of, Either):  # the choice comes first: changes are of tensors
            return Either(tuple(origin._replace(of=one) for one in of.origins))
        return origin._replace(of=of)
    inner = origin.removeprefix("model.")
    if inner == origin:
        return Either((f"language_model.{origin}", origin))
    return Either((f"language_model.{origin}", *(f"{start}{inner}" for start in starts)))
