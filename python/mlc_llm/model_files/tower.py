"""The tower of images of a model: in an `mmproj` file of llama.cpp, or in a Hugging Face folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.folder_tensors import named_tensors
from mlc_llm.model_files.tensor_views import TransposedView, View
from mlc_llm.model_files.unchanged import TextlessFiles
from mlc_llm.models.mmproj import hf_names, read_mmproj
from mlc_llm.models.vision_spec import VisionSpec, read_vision
from mlc_llm.models.weight_plan import FLOAT_KINDS, WeightPlan, plan_weights
from mlc_llm.quantization.ggml_blocks import dequantize
from mlc_llm.record import record

Shape = tuple[int, ...]
_LAYER = {
    "attn_norm": "ln1",
    "ffn_norm": "ln2",
    "attn_q": "attn_q",
    "attn_k": "attn_k",
    "attn_v": "attn_v",
    "attn_output": "attn_out",
    "ffn_up": "ffn_up",
    "ffn_down": "ffn_down",
}


@record()
class TowerFiles(TextlessFiles):
    """See `ModelFiles`. A tower has no tokenizer: its tokens are those of the model."""

    path: Path
    opened: tuple[tuple[Path, os.stat_result], ...]
    vision: VisionSpec
    tensors: Mapping[str, Tensor]
    weights: WeightPlan

    @property
    def changes(self) -> str | None:
        return "tower of images"  # the same files may have a language model too


@record()
class PaddedView(View):
    """Zeros behind some numbers along the axes of a tensor, in float32. inner, outer: its sizes as
    axes, before and behind the change."""

    inner: Shape
    outer: Shape

    @property
    def kind(self) -> str:
        return "F32"

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        values = dequantize(self.of.kind, self.of.data, self.of.shape).reshape(self.inner)
        more = [(0, new - old) for old, new in zip(self.inner, self.outer, strict=True)]
        padded = np.pad(np.asarray(values, np.float32), more)
        return np.ascontiguousarray(padded).reshape(-1).view(np.uint8)


def tower_of_gguf(file: GGUFFile) -> TowerFiles:
    """Of an opened `mmproj` file. Raises UnsupportedModel, ModelFileError with its name."""
    try:
        vision = read_mmproj(file.metadata, file.tensors)
        found = _of_gguf(vision, file.tensors)
        return _tower(file.path, file.opened, vision, found)
    except UnsupportedModel as error:
        raise UnsupportedModel(f"{file.path}: {error}") from None
    except ModelFileError as error:
        raise ModelFileError(f"{file.path}: {error}") from None


def tower_of_folder(folder: HuggingFaceFolder) -> TowerFiles:
    """Of a folder that has one. Raises UnsupportedModel, ModelFileError."""
    vision = read_vision(folder.config)
    found = named_tensors(vision.tensors, hf_names(vision), folder.tensors)
    return _tower(folder.path, folder.opened, vision, found)


def _of_gguf(vision: VisionSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names of the spec. Raises ModelFileError for one that is missing or has another
    shape, UnsupportedModel for one more."""
    found, used = {}, set()
    for name, shape in vision.tensors.items():
        full = name if name.startswith("mm.") else f"v.{name}"
        if full not in tensors:
            raise ModelFileError(f"there is no tensor {full}")
        if tensors[full].shape != shape:
            words = f"tensor {full} has shape {tensors[full].shape}, expected {shape}"
            raise ModelFileError(words)
        found[name] = tensors[full]
        used.add(full)
    more = sorted({*tensors} - used)
    if more:
        words = f"tensor {more[0]} is not part of the tower as it is known here"
        raise UnsupportedModel(words)
    return found


def _tower(
    path: Path,
    opened: tuple[tuple[Path, os.stat_result], ...],
    vision: VisionSpec,
    tensors: Mapping[str, Tensor],
) -> TowerFiles:
    """tensors: by the names of the spec of images."""
    spec, named = vision.model_spec(), _named(vision, tensors)
    return TowerFiles(path, opened, vision, named, plan_weights(spec, named))


def _named(vision: VisionSpec, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By the names of a weight plan, with zeros where it wants larger sizes."""
    spec = vision.model_spec()
    assert spec.tower is not None
    hidden, numbers = vision.hidden, vision.patch_numbers
    patch, wide = (
        View(tensors["patch_embd.weight"], (hidden, numbers)),
        (hidden, spec.tower.patch_numbers),
    )
    found: dict[str, Tensor] = {
        "patch_embd.weight": _padded(patch, wide, (hidden, numbers), wide),
        "patch_embd.bias": tensors["patch_embd.bias"],
        "position_embd.weight": _floats(tensors["position_embd.weight"]),
        "output_norm.weight": tensors["post_ln.weight"],
        "output_norm.bias": tensors["post_ln.bias"],
    }
    if vision.join == "mean":
        found["join_norm.weight"] = tensors["mm.soft_emb_norm.weight"]
        matrix = tensors["mm.input_projection.weight"]
        if matrix.kind not in FLOAT_KINDS:
            raise UnsupportedModel(f"tensor {matrix.name} of type {matrix.kind}")
        found["project.weight"] = TransposedView(matrix, (vision.width, hidden))
    else:
        found["project.weight"] = tensors["mm.model.fc.weight"]
    for i in range(vision.layers):
        for name, own in _LAYER.items():
            for end in ("weight", "bias"):
                one = tensors[f"blk.{i}.{own}.{end}"]
                found[f"blk.{i}.{name}.{end}"] = _of_layer(vision, f"{name}.{end}", one)
    return found


def _of_layer(vision: VisionSpec, name: str, tensor: Tensor) -> Tensor:
    """A tensor of a layer with zeros behind each head, and behind the rows of the network."""
    heads, hidden, wide = vision.heads, vision.hidden, vision.intermediate
    plain, padded, more = hidden // heads, vision.padded_head, vision.padded_intermediate
    sizes: dict[str, tuple[Shape, Shape, Shape]] = {
        "attn_output.weight": (
            (hidden, heads * padded), (hidden, heads, plain), (hidden, heads, padded)
        ),
        "ffn_up.weight": ((more, hidden), (wide, hidden), (more, hidden)),
        "ffn_up.bias": ((more,), (wide,), (more,)),
        "ffn_down.weight": ((hidden, more), (hidden, wide), (hidden, more)),
    }  # fmt: skip
    for part in ("attn_q", "attn_k", "attn_v"):
        sizes[f"{part}.weight"] = (
            (heads * padded, hidden), (heads, plain, hidden), (heads, padded, hidden)
        )  # fmt: skip
        sizes[f"{part}.bias"] = ((heads * padded,), (heads, plain), (heads, padded))
    return _padded(tensor, *sizes[name]) if name in sizes else tensor


def _padded(tensor: Tensor, shape: Shape, inner: Shape, outer: Shape) -> Tensor:
    """The tensor itself, where nothing is added."""
    return tensor if inner == outer else PaddedView(tensor, shape, inner, outer)


def _floats(tensor: Tensor) -> Tensor:
    """A table that is added is one of floats."""
    if tensor.kind in FLOAT_KINDS:
        return tensor
    return PaddedView(tensor, tensor.shape, tensor.shape, tensor.shape)
