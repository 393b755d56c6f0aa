"""What a tower of images is, as llama.cpp's `mmproj` files say it; and its names in folders.

Source of the keys: llama.cpp, tools/mtmd/clip-impl.h and conversion/base.py (`MmprojModel`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.image_spec import Join
from mlc_llm.models.tensor_names import FolderNames
from mlc_llm.models.values import MOST_LAYERS, Values
from mlc_llm.models.vision_spec import HF_NAMES, MOST_PATCHES, VisionSpec
from mlc_llm.models.weight_plan import Tensors
from mlc_llm.record import record

ARCHITECTURE = "clip"
PREFIX = "clip.vision."
DEFAULT_SCALE = 4
"""Patches in a row that become one token, of Gemma 3."""


@record()
class Projector:
    """What is behind the tower, by the name that files have for it."""

    join: Join
    default_scale: int | None
    matrix: str


PROJECTORS: Mapping[str, Projector] = {
    "gemma3": Projector("mean", DEFAULT_SCALE, "mm.input_projection.weight"),
    "idefics3": Projector("beside", None, "mm.model.fc.weight"),
}
CLASSES: Mapping[str, str] = {
    "Gemma3ForConditionalGeneration": "gemma3",
    "Idefics3ForConditionalGeneration": "idefics3",
    "SmolVLMForConditionalGeneration": "idefics3",
}
"""In `architectures` of a `config.json`: those whose folders have a tower -> their projector."""


def is_mmproj(metadata: Mapping[str, object]) -> bool:
    """Whether a GGUF file is a tower and no language model."""
    return metadata.get("general.architecture") == ARCHITECTURE


def projector_of(metadata: Mapping[str, object]) -> str:
    """The kind of an `mmproj` file. Raises UnsupportedModel."""
    if not is_mmproj(metadata):
        shown = metadata.get("general.architecture")
        raise UnsupportedModel(f"general.architecture is {shown!r}: this is no mmproj file (clip)")
    if metadata.get("clip.has_vision_encoder") is not True:
        raise UnsupportedModel("clip.has_vision_encoder is not true: the file reads no images")
    kind = metadata.get("clip.vision.projector_type") or metadata.get("clip.projector_type")
    if not isinstance(kind, str) or kind not in PROJECTORS:
        known = ", ".join(PROJECTORS)
        raise UnsupportedModel(f"clip.projector_type is {kind!r}; supported: {known}")
    return kind


def read_mmproj(metadata: Mapping[str, object], tensors: Tensors) -> VisionSpec:
    """Raises UnsupportedModel or ModelFileError naming the key at fault."""
    projector = PROJECTORS[projector_of(metadata)]
    values = Values(metadata, PREFIX, null_is_absent=False)
    patch, size = values.count("patch_size"), values.count("image_size")
    side = size // patch
    is_right = side > 0 and side**2 <= MOST_PATCHES
    values.check("image_size", is_right, f"1 to {MOST_PATCHES} patches of patch_size = {patch}")
    scale = values.count("projector.scale_factor", projector.default_scale)
    values.check("projector.scale_factor", side % scale == 0, f"a divisor of {side}")
    hidden, heads = values.count("embedding_length"), values.count("attention.head_count")
    values.check("attention.head_count", hidden % heads == 0, f"a divisor of {hidden}")
    activation = Values(metadata, "clip.", null_is_absent=False)
    if not activation.flag("use_gelu", False):
        raise UnsupportedModel("clip.use_gelu is false: no other activation is known here")
    return VisionSpec(
        side=side,
        patch=patch,
        hidden=hidden,
        heads=heads,
        intermediate=values.count("feed_forward_length"),
        layers=values.count("block_count", most=MOST_LAYERS),
        norm_eps=values.positive("attention.layer_norm_epsilon"),
        activation="gelu_tanh",
        pooled_side=side // scale,
        width=_width(values, projector, tensors),
        join=projector.join,
    )


def _width(values: Values, projector: Projector, tensors: Tensors) -> int:
    """Of the vectors. Files say `projection_dim`, and the matrix has it too."""
    width = values.count("projection_dim")
    matrix = tensors.get(projector.matrix)
    if matrix is None or len(matrix.shape) != 2:
        raise ModelFileError(f"there is no matrix {projector.matrix}")
    if width not in matrix.shape:
        words = f"a size of {projector.matrix}, {matrix.shape}"
        raise values.wrong("projection_dim", width, words)
    return width


def mmproj_pixels(metadata: Mapping[str, object]) -> dict[str, object]:
    """What a file says of pixels, with the names of `preprocessor_config.json`. Raises
    ModelFileError, UnsupportedModel."""
    kind = projector_of(metadata)
    values = Values(metadata, PREFIX, null_is_absent=False)
    size = values.count("image_size")
    sizes: dict[str, object] = {
        "image_processor_type": "Gemma3ImageProcessor",
        "size": {"height": size, "width": size},
    }
    if kind == "idefics3":
        sizes = {
            "image_processor_type": "Idefics3ImageProcessor",
            "size": {"longest_edge": values.count("preproc_image_size", size)},
            "max_image_size": {"longest_edge": size},
        }
    return {
        **sizes,
        "image_mean": values.get("image_mean", [0.5, 0.5, 0.5]),
        "image_std": values.get("image_std", [0.5, 0.5, 0.5]),
    }


def hf_names(vision: VisionSpec) -> FolderNames:
    """Where the tensors of a tower lie in a folder."""
    wanted = {name.replace("blk.0.", "blk.{i}.") for name in vision.tensors}
    origins = {name: one for name, one in HF_NAMES.origins.items() if name in wanted}
    return replace(HF_NAMES, origins=origins)
