"""A model with an EAGLE head, which lies in a folder of its own: config.json and safetensors."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.changed import ChangedFiles
from mlc_llm.model_files.medusa import QUANTIZATION
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.model_files.tensor_views import View
from mlc_llm.models.eagle_plan import KNOWN, OFFSETS, ROWS, UNREAD, plan_eagle
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.record import record

PREFIX = "eagle."
"""Before the names of the head's tensors, beside those of the model."""
Integers = npt.NDArray[np.int64]


@record()
class RowsOfTokens(View):
    """float32 [tokens]: the row that each token of the model has in the head, -1 for none. of: the
    offsets of the rows."""

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        targets, rows = targets_of(self.of), np.full(self.shape, -1, np.float32)
        rows[targets] = np.arange(len(targets), dtype=np.float32)
        return rows.view(np.uint8)


@record()
class HeadFiles(ChangedFiles):
    """The head's own tensors, by their names in the folder, as `QuantizedModel` reads them."""

    head: HuggingFaceFolder
    weights: WeightPlan
    tensors: Mapping[str, Tensor]
    quantization = None
    changes = None

    def plan(self) -> WeightPlan:
        return self.weights


@record()
class EagleModel(ChangedFiles):
    """See `ModelFiles`."""

    head: ModelFiles
    folder: HuggingFaceFolder

    @property
    def quantization(self) -> str | None:
        return self.of.quantization

    @property
    def changes(self) -> str | None:
        return f"with an EAGLE head: {self.of.changes}, {self.head.changes}"

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return (*self.of.opened, *self.folder.opened)

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        own = {f"{PREFIX}{name}": one for name, one in self.head.tensors.items()}
        return {**self.of.tensors, **own}

    def plan(self) -> WeightPlan:
        model, head = self.of.plan(), self.head.plan()
        own = {
            name: tuple(replace(one, tensor=f"{PREFIX}{one.tensor}") for one in sources)
            for name, sources in head.matrices.items()
        }
        vectors = {
            name: replace(one, tensor=f"{PREFIX}{one.tensor}") for name, one in head.vectors.items()
        }
        spec = replace(head.spec, kinds={**model.spec.kinds, **head.spec.kinds})
        return WeightPlan(spec, {**model.matrices, **own}, {**model.vectors, **vectors})


def open_eagle(path: Path, model: ModelFiles) -> ModelFiles:
    """A model with the head in a folder. Raises ModelNotFound, ModelFileError, UnsupportedModel,
    and InvalidField for a quantization that is not known."""
    if not path.is_dir():
        raise UnsupportedModel(f"{path}: an EAGLE head is a folder of config.json and safetensors")
    folder = HuggingFaceFolder.open(path)
    try:
        head = _head(folder, model)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from None
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    return EagleModel(model, head, folder)


def _head(folder: HuggingFaceFolder, model: ModelFiles) -> ModelFiles:
    plan, tensors = model.plan(), dict[str, Tensor](folder.tensors)
    if OFFSETS in tensors:
        tensors[ROWS] = _rows(tensors, plan.spec.vocab)
    weights = plan_eagle(folder.config, tensors, plan)
    read = {name: one for name, one in tensors.items() if name not in UNREAD}
    files = HeadFiles(model, folder, weights, read)
    quantization = folder.config.get(QUANTIZATION)
    if quantization is None:
        return files
    if not isinstance(quantization, str):
        raise ModelFileError(f"{QUANTIZATION} = {quantization!r} should be a name")
    return QuantizedModel.of_files(files, quantization)


def targets_of(offsets: Tensor) -> Integers:
    """The model's token of each row of the head."""
    found: Integers = offsets.data.view(np.int64) + np.arange(offsets.shape[0])
    return found


def _rows(tensors: Mapping[str, Tensor], vocab: int) -> Tensor:
    """The table that the tensors of tokens give. Raises ModelFileError if they contradict."""
    offsets = tensors[OFFSETS]
    if offsets.kind != "I64" or len(offsets.shape) != 1:
        raise ModelFileError(f"tensor {OFFSETS} of type {offsets.kind}: whole numbers are expected")
    targets = targets_of(offsets)
    if not len(targets) or not 0 <= targets.min() <= targets.max() < vocab:
        raise ModelFileError(f"tensor {OFFSETS} names tokens outside 0 to {vocab - 1}")
    if len(np.unique(targets)) != len(targets):
        raise ModelFileError(f"tensor {OFFSETS} names a token twice")
    if KNOWN in tensors:
        known = tensors[KNOWN]
        is_known = known.data if known.kind in ("BOOL", "U8") else np.zeros(0, np.uint8)
        if not np.array_equal(np.flatnonzero(is_known), np.sort(targets)):
            raise ModelFileError(f"tensors {OFFSETS} and {KNOWN} name different tokens")
    return RowsOfTokens(offsets, (vocab,))
