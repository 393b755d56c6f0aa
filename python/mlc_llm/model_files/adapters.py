"""What a LoRA adapter adds to a model's matrices, by the names of the model's tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError, ModelNotFound, UnsupportedModel
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.lora import Factors, LoraAdapter
from mlc_llm.loader.lora_folder import open_lora_folder
from mlc_llm.loader.lora_gguf import open_lora_gguf
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.file_order import file_order
from mlc_llm.model_files.folder_leaves import folder_leaves
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.model_files.huggingface import HuggingFaceModel, with_tensors
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.model_files.rescaled import RescaledModel
from mlc_llm.model_files.tensor_views import Bytes, View
from mlc_llm.models.registry import architecture_of, names_of_gguf
from mlc_llm.models.row_order import row_order
from mlc_llm.models.sources import Source
from mlc_llm.models.tensor_names import FolderNames
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.record import record

Floats = npt.NDArray[np.float32]


@record()
class Change:
    """up @ down is added to a matrix [rows, columns], in the order of rows that its file has."""

    down: Floats
    """[rank, columns]."""
    up: Floats
    """[rows, rank], times the scale."""


def open_adapter(source: str) -> LoraAdapter:
    """A PEFT folder or a GGUF file. Raises ModelNotFound, ModelFileError, UnsupportedModel."""
    path = Path(source).expanduser()
    try:
        if path.is_dir():
            return open_lora_folder(path)
        if path.is_file():
            return open_lora_gguf(path)
    except OSError as error:
        raise ModelNotFound(f"adapter {source[:200]!r}: {error.strerror}") from None
    raise ModelNotFound(
        f"adapter {source[:200]!r}: no such file or folder; give a folder with adapter_config.json "
        "and adapter_model.safetensors, or a .gguf file"
    )


def changes_of(files: ModelFiles, adapter: LoraAdapter) -> dict[str, Change]:
    """What an adapter adds to each tensor of a model, by GGUF's names. Reads the adapter's values.

    Raises UnsupportedModel or ModelFileError for an adapter that is not one of this model, with
    the tensor at fault.
    """
    if isinstance(files, (QuantizedModel, RescaledModel)):
        return changes_of(files.of, adapter)
    sources = {
        source.tensor: source
        for found in files.plan().matrices.values()
        for source in found
        if source.tensor.startswith("blk.") and len(source.shape) == 2
    }
    if adapter.architecture is None:
        return _of_folder(files, adapter, sources)
    return _of_gguf(files, adapter, sources)


def _of_gguf(
    files: ModelFiles, adapter: LoraAdapter, sources: Mapping[str, Source]
) -> dict[str, Change]:
    own = files.plan().spec.architecture
    if adapter.architecture != own:
        raise UnsupportedModel(
            f"{adapter.path}: it is for a model of architecture {adapter.architecture!r}; this "
            f"one has {own!r}"
        )
    if not isinstance(files, GGUFModel):
        raise UnsupportedModel(
            f"{adapter.path}: an adapter in a GGUF file is for models in GGUF files; this model "
            "needs the adapter's PEFT folder"
        )
    _check_known(adapter, sources)
    return {
        name: _change(adapter, one, sources[name].shape, one.up)
        for name, one in adapter.factors.items()
    }


def _of_folder(
    files: ModelFiles, adapter: LoraAdapter, sources: Mapping[str, Source]
) -> dict[str, Change]:
    names = _names(files, adapter)
    leaves = folder_leaves(sources, names, adapter.factors)
    _check_known(adapter, {leaf.name for leaf in leaves.values()})
    wanted = {
        name: (sources[name].shape[0], adapter.factors[leaf.name].rank)
        for name, leaf in leaves.items()
        if not leaf.is_whole
    }
    whole = {name: adapter.factors[one.name].up for name, one in leaves.items() if one.is_whole}
    used = {leaves[name].name for name in whole}
    ups = {leaf: one.up for leaf, one in adapter.factors.items() if leaf not in used}
    heads = [one.heads for one in files.plan().spec.attention_layers.values()] or [1]
    found = named_tensors(wanted, names.of_rows(), ups, heads[0]) | whole
    changes = {}
    for name, leaf in leaves.items():
        source = sources[name]
        change = _change(adapter, adapter.factors[leaf.name], source.shape, found[name])
        order = file_order(files, source, folder_pairs=names.interleaved_rope)
        changes[name] = Change(*order.of(change.down, change.up))
    return changes


def _names(files: ModelFiles, adapter: LoraAdapter) -> FolderNames:
    if isinstance(files, HuggingFaceModel):
        return architecture_of(files.folder.config).names_of(files.folder.config)
    architecture = files.plan().spec.architecture
    names = names_of_gguf(architecture)
    if names is None:
        raise UnsupportedModel(
            f"{adapter.path}: an adapter in a PEFT folder for this model ({architecture}) needs "
            "the model as a Hugging Face folder"
        )
    return names


def _check_known(adapter: LoraAdapter, known: Mapping[str, object] | set[str]) -> None:
    for name in adapter.factors:
        if name not in known:
            raise UnsupportedModel(
                f"{adapter.path}: it changes {printable(name)}, which is no matrix of this model's "
                "layers that can be changed"
            )


def _change(adapter: LoraAdapter, factors: Factors, shape: tuple[int, ...], up: Tensor) -> Change:
    """up: the tall factor in the order of rows of the model."""
    for tensor, sizes in ((factors.down, (factors.rank, shape[1])), (up, (shape[0], factors.rank))):
        if tensor.shape != sizes:
            raise ModelFileError(
                f"{adapter.path}: tensor {printable(tensor.name)} has shape {tensor.shape}, this "
                f"model needs {sizes}"
            )
    scaled = _values(adapter, up) * np.float32(factors.scale)
    return Change(_values(adapter, factors.down), scaled)


def _values(adapter: LoraAdapter, tensor: Tensor) -> Floats:
    values = dequantize(tensor.kind, tensor.data, tensor.shape)
    if not np.isfinite(values).all():
        raise ModelFileError(
            f"{adapter.path}: tensor {printable(tensor.name)} holds NaN or infinite values"
        )
    return values


def parts_of(
    plan: WeightPlan, changes: Mapping[str, Change]
) -> dict[str, tuple[Change | None, ...]]:
    """The changes of the parts of each matrix, by its parameter's name, in the order of rows of the
    kernels; None for a part that stays as it is."""
    found = {}
    for name, sources in plan.matrices.items():
        parts = tuple(_ordered(changes.get(source.tensor), source) for source in sources)
        if any(one is not None for one in parts):
            found[name] = parts
    return found


def _ordered(change: Change | None, source: Source) -> Change | None:
    if change is None:
        return None
    return replace(change, up=change.up[row_order(source, len(change.up))])


@record()
class ChangedView(View):
    """A matrix with what an adapter adds to it, in float32."""

    change: Change

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> Bytes:
        values: Floats = dequantize(self.of.kind, self.of.data, self.of.shape)
        merged: Floats = values + self.change.up @ self.change.down
        return merged.reshape(-1).view(np.uint8)


def merged(files: ModelFiles, adapter: LoraAdapter) -> ModelFiles:
    """The model whose matrices have an adapter's changes in them. Raises UnsupportedModel,
    ModelFileError."""
    if not isinstance(files, (GGUFModel, HuggingFaceModel)):
        raise UnsupportedModel(
            f"{files.path}: an adapter can be merged into a .gguf file or a Hugging Face folder"
        )
    changed = {
        name: ChangedView(files.tensors[name], files.tensors[name].shape, change)
        for name, change in changes_of(files, adapter).items()
    }
    if isinstance(files, GGUFModel):
        return replace(files, changed={**files.changed, **changed})
    return with_tensors(files, {**files.tensors, **changed})
