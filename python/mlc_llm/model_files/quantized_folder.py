"""Hugging Face folders with quantised matrices: what their tensors are without the packing.

`quantization_config` of config.json says how the matrices were quantised. A matrix is then several
tensors with one stem; here they become one tensor STEM.weight, as in other folders.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.float8_view import Float8View
from mlc_llm.model_files.packed_tensors import Tensors, awq, compressed, gptq
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import FLOAT_KINDS

FLOAT8 = "F8_E4M3"
_NOT_NEEDED = ("activation_scale", "input_scale")
"""Scales of activations, which are not rounded here."""


def plain_tensors(config: Mapping[str, object], tensors: Tensors) -> Tensors:
    """The tensors of a folder, each quantised matrix as one. Nothing is read.

    Raises UnsupportedModel, ModelFileError naming the field or the tensor at fault.
    """
    if config.get("quantization_config") is None:
        return tensors
    how = Values(config, "", null_is_absent=True).part("quantization_config")
    return how.choice("quant_method", METHODS)(how, tensors)


def _as_they_are(how: Values, tensors: Tensors) -> Tensors:
    """The table of names of the architecture says how its MXFP4 tensors lie."""
    return tensors


def _float8(how: Values, tensors: Tensors) -> Tensors:
    """Matrices of 8-bit floats, each block of a matrix with a scale of its own."""
    how.refuse_unless("fmt", "e4m3")
    block = how.numbers("weight_block_size", 2) if how.has("weight_block_size") else None
    how.check("weight_block_size", block is None or min(block) > 0, "two numbers above 0")
    return _with_scales("weight_scale_inv", tensors, block)


def _compressed(how: Values, tensors: Tensors) -> Tensors:
    """compressed-tensors has formats of its own. In 8-bit floats each row has a scale, or each
    matrix. Transforms of what a matrix reads or gives are not computed."""
    how.refuse_unless("transform_config", {})
    if how.get("format") == "float-quantized":
        return _with_scales("weight_scale", tensors, None)
    return compressed(how, tensors)


def _with_scales(end: str, tensors: Tensors, block: tuple[int, ...] | None) -> Tensors:
    """All tensors; those of a matrix of 8-bit floats as one. end: of the names of scales. block:
    rows and columns that share a scale; None: a row has one, or the whole matrix."""
    found = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last in (end, *_NOT_NEEDED) and _is_float8(tensors.get(f"{stem}.weight")):
            continue
        is_matrix = _is_float8(tensor)
        found[name] = _scaled(tensor, f"{stem}.{end}", block, tensors) if is_matrix else tensor
    return found


def _is_float8(tensor: Tensor | None) -> bool:
    return tensor is not None and tensor.kind == FLOAT8


def _scaled(tensor: Tensor, scales: str, block: tuple[int, ...] | None, tensors: Tensors) -> Tensor:
    """A matrix with the scales of this name. block: as above."""
    if scales not in tensors:
        raise ModelFileError(f"there is no tensor {scales}")
    if len(tensor.shape) != 2:
        raise UnsupportedModel(f"tensor {tensor.name} of 8-bit floats has shape {tensor.shape}")
    found, (rows, columns) = tensors[scales], tensor.shape
    if found.kind not in FLOAT_KINDS:
        raise UnsupportedModel(f"tensor {scales} of type {found.kind}")
    high, wide = block or ((1 if found.shape == (rows, 1) else rows), columns)
    expected = (-(-rows // high), -(-columns // wide))
    if found.shape != expected and (found.shape not in ((), (1,)) or expected != (1, 1)):
        raise ModelFileError(f"tensor {scales} has shape {found.shape}, expected {expected}")
    return Float8View(tensor, tensor.shape, found, (high, wide))


METHODS = {
    "awq": awq,
    "compressed-tensors": _compressed,
    "fp8": _float8,
    "gptq": gptq,
    "mxfp4": _as_they_are,
}
"""By `quantization_config.quant_method`."""
