"""What a new GGUF file is made of: metadata, and tensors in the order of rows that GGUF has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.conversion.gguf_header import metadata_of
from mlc_llm.errors import UnsupportedModel
from mlc_llm.loader.gguf_metadata import RawEntry
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel
from mlc_llm.models.spec import AttentionSpec, ModelSpec
from mlc_llm.quantization.block_format import Floats
from mlc_llm.quantization.names import FOLDERS

_DROPPED = ("general.alignment", "split.no", "split.count", "split.tensors.count")
_FREQUENCIES = "rope_freqs.weight"


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
        spec = files.plan().spec
        tensors = _reordered(files.tensors, spec)
        return GGUFSource(metadata_of(files), tensors, True, importance)
    known = ", ".join(FOLDERS)
    raise UnsupportedModel(
        f"{files.path}: a .gguf file is made of a .gguf file or of a Hugging Face folder; this can "
        f"become {known}"
    )


def _reordered(tensors: Mapping[str, Tensor], spec: ModelSpec) -> dict[str, Tensor]:
    """A Llama's pairs that rotate lie side by side in GGUF, and divisors of frequencies are a
    tensor."""
    found = dict(tensors)
    if spec.architecture != "llama":
        return found
    for i, layer in enumerate(spec.layers):
        one = layer.mixer
        assert isinstance(one, AttentionSpec)
        for name, heads in (("q", one.heads), ("k", one.kv_heads)):
            for end in ("weight", "bias"):
                key = f"blk.{i}.attn_{name}.{end}"
                if key in found:
                    found[key] = PairedRows(found[key], heads)
    factors = spec.ropes[0].factors
    if isinstance(factors, tuple):
        found[_FREQUENCIES] = Numbers(_FREQUENCIES, np.array(factors, np.float32))
    return found


@dataclass(frozen=True)
class PairedRows:
    """A tensor whose rows are halves of heads, as pairs: row i of a head's first half goes before
    row i of its second one."""

    of: Tensor
    heads: int

    @property
    def name(self) -> str:
        return self.of.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.of.shape

    @property
    def kind(self) -> str:
        return self.of.kind

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        rows = self.of.data.reshape(self.heads, 2, self.shape[0] // self.heads // 2, -1)
        return np.ascontiguousarray(rows.transpose(0, 2, 1, 3)).reshape(-1)

    def matrix(self, index: int) -> Tensor:
        raise AssertionError("it is no stack")

    def give_back(self) -> None:
        self.of.give_back()


@dataclass(frozen=True)
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
