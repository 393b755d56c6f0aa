"""What a new GGUF file is made of: metadata, and tensors in the order of rows that GGUF has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.gguf_fields import JOINED, Class, rope_config, text_config
from mlc_llm.conversion.gguf_header import class_of, metadata_of
from mlc_llm.conversion.head_order import with_heads_in_turn
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.model_files.quantized_folder import plain_tensors
from mlc_llm.model_files.tensor_views import StackView, View
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import wanted_tensors
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.names import FOLDERS
from mlc_llm.record import record

_DROPPED = ("general.alignment", "split.no", "split.count", "split.tensors.count")
_FREQUENCIES = "rope_freqs.weight"
_LAYER = re.compile(r"blk\.\d+\.")
_SHORT, _LONG = "rope_factors_short.weight", "rope_factors_long.weight"


class GGUFSource(NamedTuple):
    """All of it."""

    metadata: dict[str, RawEntry]
    tensors: Mapping[str, Tensor]
    widens: bool
    """What stays as it is becomes float32: a folder's vectors may have 16 bits, which llama.cpp
    does not read."""
    importance: Mapping[str, Floats] = {}
    """Of the columns of matrices, float32 [columns]."""


def gguf_source(files: ModelFiles, importance: Mapping[str, Floats] = {}) -> GGUFSource:
    """Raises UnsupportedModel for files of which no GGUF file is made, ModelFileError."""
    if isinstance(files, GGUFModel):
        old = files.file.metadata
        metadata = {key: old.raw(key) for key in old if key not in _DROPPED}
        return GGUFSource(metadata, files.tensors, False, importance)
    if isinstance(files, HuggingFaceModel):
        tensors = _as_written(files, class_of(files))
        return GGUFSource(metadata_of(files, tensors), tensors, True, importance)
    known = ", ".join(FOLDERS)
    raise UnsupportedModel(
        f"{files.path}: a .gguf file is made of a .gguf file or of a Hugging Face folder; this can "
        f"become {known}"
    )


def _as_written(files: HuggingFaceModel, way: Class) -> dict[str, Tensor]:
    """The tensors that the new file has."""
    spec, found = files.plan().spec, files.tensors
    if way.names is not None:
        config = files.folder.config
        origins = plain_tensors(config, files.folder.tensors)
        found = named_tensors(wanted_tensors(spec), way.names(config), origins)
    found = with_heads_in_turn(spec, found)
    for i, layer in enumerate(spec.layers):
        one = layer.mixer
        if way.pairs_rows and isinstance(one, AttentionSpec):
            _pair(found, f"blk.{i}.attn_q", one.heads)
            _pair(found, f"blk.{i}.attn_k", one.kv_heads)
        for name in way.joined:
            for end in ("weight", "bias"):
                _join(found, f"blk.{i}.{name}.{end}", [f"blk.{i}.{p}.{end}" for p in JOINED[name]])
    renamed = {_new_name(name, way): tensor for name, tensor in found.items()}
    if not way.divides:
        return renamed
    return renamed | _divisors(spec, rope_config(text_config(files.folder.config)))


def _new_name(name: str, way: Class) -> str:
    """GGUF's usual name as this architecture's files have it."""
    layer = _LAYER.match(name)
    start = "" if layer is None else layer[0]
    end = name[len(start) :]
    return start + way.renamed.get(end, end)


def _divisors(spec: ModelSpec, rope: Mapping[str, object]) -> dict[str, Tensor]:
    """Those of rotary frequencies. Readers compute YaRN's."""
    if not spec.ropes or rope.get("rope_type", rope.get("type")) == "yarn":
        return {}
    one = spec.ropes[0]
    name = _FREQUENCIES if one.long_factors is None else _SHORT
    return {
        name: Numbers(name, np.array(factors, np.float32))
        for name, factors in ((name, one.factors), (_LONG, one.long_factors))
        if isinstance(factors, tuple)
    }


def _pair(found: dict[str, Tensor], stem: str, heads: int) -> None:
    """Put rows of heads that rotate together side by side."""
    for name in (f"{stem}.weight", f"{stem}.bias"):
        if name in found:
            found[name] = PairedRows(found[name], found[name].shape, heads)


def _join(found: dict[str, Tensor], name: str, parts: list[str]) -> None:
    """Put tensors below each other, if they are there."""
    if all(one in found for one in parts):
        found[name] = JoinedView([found.pop(one) for one in parts])


@record()
class PairedRows(View):
    """A tensor whose rows are halves of heads, as pairs: row i of a head's first half goes before
    row i of its second one."""

    heads: int

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        rows = self.of.data.reshape(self.heads, 2, self.shape[0] // self.heads // 2, -1)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1)


@record()
class JoinedView(StackView):
    """Matrices, or vectors, of one type below each other."""

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(one.shape[0] for one in self.of), *self.of[0].shape[1:])

    def matrix(self, index: int) -> Tensor:
        raise AssertionError("it is no stack")


@record()
class Numbers:
    """A vector that no file has."""

    name: str
    values: npt.NDArray[np.float32]
    kind: str = "F32"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        return self.values.view(np.uint8)

    def matrix(self, index: int) -> Tensor:
        raise AssertionError("it is no stack")

    def give_back(self) -> None:
        """It is no part of a file."""
