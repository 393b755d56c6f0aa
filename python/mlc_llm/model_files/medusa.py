"""A folder of Medusa heads: config.json and one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.model_files.unchanged import TextlessFiles
from mlc_llm.models.medusa_plan import plan_medusa
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.record import record

QUANTIZATION = "quantization"
"""A field of ours in config.json: to what the matrices are quantised when they are packed, as the
field of `EngineConfig`. Heads read as many weights as the model's own head each, and are stored as
floats."""


@record()
class MedusaHeads(TextlessFiles):
    """See `ModelFiles`. They have no tokenizer: their tokens are those of the model."""

    folder: HuggingFaceFolder
    weights: WeightPlan

    @property
    def tensors(self) -> Mapping[str, Tensor]:
        return self.folder.tensors

    @property
    def path(self) -> Path:
        return self.folder.path

    @property
    def opened(self) -> tuple[tuple[Path, os.stat_result], ...]:
        return self.folder.opened


def open_medusa(path: Path) -> ModelFiles:
    """The heads in a folder. Raises ModelNotFound, ModelFileError, UnsupportedModel, and
    InvalidField for a quantization that is not known."""
    if not path.is_dir():
        raise UnsupportedModel(f"{path}: Medusa heads are a folder of config.json and safetensors")
    folder = HuggingFaceFolder.open(path)
    try:
        heads = MedusaHeads(folder, plan_medusa(folder.config, folder.tensors))
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{path}: {error}") from None
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}") from None
    quantization = folder.config.get(QUANTIZATION)
    if quantization is None:
        return heads
    if not isinstance(quantization, str):
        raise ModelFileError(f"{path}: {QUANTIZATION} = {quantization!r} should be a name")
    return QuantizedModel.of_files(heads, quantization)
