"""Which tensors of a folder make a 4-bit matrix, each checked before it is read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.packed_views import AwqView, CompressedView, OrderedView, PackedView
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import FLOAT_KINDS
from mlc_llm.quantization.zero_point_blocks import GROUP

Tensors = Mapping[str, Tensor]
Shape = tuple[int, ...]


class _Ends(NamedTuple):
    """What stands behind the stem in the names of a method's tensors."""

    words: str
    scales: str
    zeros: str
    others: tuple[str, ...] = ()
    """Tensors that say what is known without them."""


_GPTQ = _Ends("qweight", "scales", "qzeros", ("g_idx",))
_COMPRESSED = _Ends("weight_packed", "weight_scale", "weight_zero_point", ("weight_shape",))
Made = Callable[[str, Tensor, Tensors], PackedView]


def gptq(how: Values, tensors: Tensors) -> Tensors:
    """GPTQ (Frantar et al. 2023) with 4 bits. Raises UnsupportedModel, ModelFileError."""
    how.refuse_unless("bits", 4)
    first = how.choice("checkpoint_format", {"gptq": 1, "gptq_v2": 0}, "gptq")

    def made(stem: str, words: Tensor, tensors: Tensors) -> PackedView:
        shape = _matrix(words)[1], 8 * words.shape[0]
        scales = _scales(stem, _GPTQ, shape[::-1], tensors)
        zeros = _zeros(stem, _GPTQ, (scales.shape[0], shape[0] // 8), tensors)
        order = _order(stem, shape[1], scales.shape[0], tensors)
        if order is None:
            return PackedView(words, shape, scales, zeros, first)
        return OrderedView(words, shape, scales, zeros, first, order=order)

    return _with_matrices(_GPTQ, made, tensors)


def awq(how: Values, tensors: Tensors) -> Tensors:
    """AWQ (Lin et al. 2024) with 4 bits. Raises UnsupportedModel, ModelFileError."""
    how.refuse_unless("bits", 4)
    how.refuse_unless("version", "gemm")

    def made(stem: str, words: Tensor, tensors: Tensors) -> PackedView:
        shape = 8 * _matrix(words)[1], words.shape[0]
        scales = _scales(stem, _GPTQ, shape[::-1], tensors)
        zeros = _zeros(stem, _GPTQ, (scales.shape[0], shape[0] // 8), tensors)
        return AwqView(words, shape, scales, zeros)

    return _with_matrices(_GPTQ, made, tensors)


def compressed(how: Values, tensors: Tensors) -> Tensors:
    """compressed-tensors in the format "pack-quantized", with 4 bits. Raises UnsupportedModel,
    ModelFileError."""
    how.refuse_unless("format", "pack-quantized")
    groups = how.get("config_groups")
    for name in groups if isinstance(groups, Mapping) else {}:
        weights = how.part("config_groups").part(name).part("weights")
        weights.refuse_unless("num_bits", 4)
        weights.refuse_unless("type", "int")

    def made(stem: str, words: Tensor, tensors: Tensors) -> PackedView:
        shape = _matrix(words)[0], 8 * words.shape[1]
        scales = _scales(stem, _COMPRESSED, shape, tensors, axis=1)
        zeros = None
        if f"{stem}.{_COMPRESSED.zeros}" in tensors:
            zeros = _zeros(stem, _COMPRESSED, (shape[0] // 8, scales.shape[1]), tensors)
        return CompressedView(words, shape, scales, zeros)

    return _with_matrices(_COMPRESSED, made, tensors)


def _with_matrices(ends: _Ends, made: Made, tensors: Tensors) -> Tensors:
    """All tensors; those of a 4-bit matrix as one."""
    found: dict[str, Tensor] = {}
    parts = {ends.words, ends.scales, ends.zeros, *ends.others}
    for name, tensor in tensors.items():
        stem, _, end = name.rpartition(".")
        if end == ends.words:
            found[f"{stem}.weight"] = made(stem, tensor, tensors)
        elif end not in parts or f"{stem}.{ends.words}" not in tensors:
            found[name] = tensor
    return found


def _matrix(words: Tensor) -> Shape:
    if words.kind != "I32" or len(words.shape) != 2:
        raise UnsupportedModel(
            f"tensor {words.name} of type {words.kind} and shape {words.shape}; it should be a "
            "matrix of I32"
        )
    return words.shape


def _scales(stem: str, ends: _Ends, shape: Shape, tensors: Tensors, *, axis: int = 0) -> Tensor:
    """shape: of the matrix as the scales lie; axis: of its columns."""
    scales = _named(f"{stem}.{ends.scales}", tensors)
    if scales.kind not in FLOAT_KINDS:
        raise UnsupportedModel(f"tensor {scales.name} of type {scales.kind}")
    expected = list(shape)
    expected[axis] = groups = scales.shape[axis] if len(scales.shape) == 2 else 1
    _check_shape(scales, tuple(expected))
    if not groups or shape[axis] % (GROUP * groups):
        raise UnsupportedModel(
            f"tensor {scales.name}: {groups} groups of {shape[axis]} numbers; a group should have "
            f"whole {GROUP} numbers"
        )
    return scales


def _zeros(stem: str, ends: _Ends, shape: Shape, tensors: Tensors) -> Tensor:
    zeros = _named(f"{stem}.{ends.zeros}", tensors)
    if zeros.kind != "I32":
        raise UnsupportedModel(f"tensor {zeros.name} of type {zeros.kind}; supported: I32")
    _check_shape(zeros, shape)
    return zeros


def _named(name: str, tensors: Tensors) -> Tensor:
    if name not in tensors:
        raise ModelFileError(f"there is no tensor {name}")
    return tensors[name]


def _check_shape(tensor: Tensor, expected: Shape) -> None:
    if tensor.shape != expected:
        raise ModelFileError(f"tensor {tensor.name} has shape {tensor.shape}, expected {expected}")


def _order(stem: str, columns: int, groups: int, tensors: Tensors) -> Tensor | None:
    """The group of each column; None if each group has neighbours. GPTQ may quantise columns in
    the order of their importance (`desc_act`)."""
    order = tensors.get(f"{stem}.g_idx")
    if order is None:
        return None
    if order.kind != "I32" or order.shape != (columns,):
        raise ModelFileError(f"tensor {order.name} of type {order.kind}, shape {order.shape}")
    found = order.data.view("<i4")
    if found.min() < 0 or found.max() >= groups:
        raise ModelFileError(f"tensor {order.name} has numbers beyond its {groups} groups")
    return None if (found == np.arange(columns) // (columns // groups)).all() else order
