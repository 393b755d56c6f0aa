"""The tensors of a model folder under GGUF's names, each checked before it is read."""

from __future__ import annotations

import math
import re
from collections.abc import Container, Mapping, Sequence

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.tensor_views import (
    AlternateView,
    HeadPartsView,
    HeadRowsView,
    MicroscaledView,
    MinusExpView,
    PlusOneView,
    RowsView,
    ScaledView,
    StackView,
    TransposedView,
    View,
)
from mlc_llm.models.tensor_names import (
    Alternate,
    Either,
    FolderNames,
    HeadParts,
    HeadRows,
    Microscaled,
    MinusExp,
    Origin,
    PlusOne,
    Rows,
    Scaled,
    Squeezed,
    Stacked,
    Tail,
    Transposed,
)
from mlc_llm.models.weight_plan import FLOAT_KINDS
from mlc_llm.quantization.float8_blocks import FLOAT8_FORMATS
from mlc_llm.quantization.zero_point_blocks import ZERO_POINT_FORMATS

Shape = tuple[int, ...]
_LAYER = re.compile(r"blk\.(\d+)\.")


def named_tensors(
    wanted: Mapping[str, Shape],
    names: FolderNames,
    tensors: Mapping[str, Tensor],
    heads: int = 1,
) -> dict[str, Tensor]:
    """What is wanted, by GGUF's name -> shape, out of a folder's tensors. Nothing is read. heads:
    those of queries in a layer.

    Raises ModelFileError for a tensor that is missing or has another shape, UnsupportedModel for
    one that is not wanted or has another type; both have the folder's own name of it.
    """
    found = _Found(wanted, names, tensors, heads)
    views = {name: found.tensor(name) for name in wanted}
    for name in sorted(set(tensors) - found.used):
        if not any(_fits(pattern, name) for pattern in names.ignored):
            raise UnsupportedModel(
                f"tensor {name} is not part of the architecture as it is known here"
            )
    return views


def leaf_of(name: str, names: FolderNames, tensors: Container[str]) -> str | None:
    """The tensor of a folder that a matrix is made of, by GGUF's name of the matrix; None: none of
    these. A stack of matrices has none."""
    pattern, numbers = _pattern(name)
    origin = names.origins.get(pattern)
    return None if origin is None else _leaf_of(origin, numbers, tensors)


def fused_parts(name: str, names: FolderNames, tensors: Container[str]) -> tuple[str, ...]:
    """GGUF's names of all parts of the fused tensor of a folder that a matrix is some rows of, from
    the first row on; (): it is none of these."""
    pattern, numbers = _pattern(name)
    origin = names.origins.get(pattern)
    while isinstance(origin, Either):
        there = (one for one in origin.origins if _leaf_of(one, numbers, tensors) is not None)
        origin = next(there, None)
    parts = origin.parts if isinstance(origin, Rows) else ()
    return tuple(part.format(**numbers) for part in parts)


def _leaf_of(origin: Origin, numbers: dict[str, str], tensors: Container[str]) -> str | None:
    if isinstance(origin, str):
        name = None if "{e}" in origin else origin.format(**numbers)
        return name if name in tensors else None
    if isinstance(origin, Either):
        found = (_leaf_of(one, numbers, tensors) for one in origin.origins)
        return next((one for one in found if one is not None), None)
    if isinstance(origin, Microscaled | Stacked):
        return None
    return _leaf_of(origin.of, numbers, tensors)


def _pattern(name: str) -> tuple[str, dict[str, str]]:
    """A name of GGUF with {i} for its layer, and the number of that."""
    layer = _LAYER.match(name)
    if layer is None:
        return name, {}
    return f"blk.{{i}}.{name[layer.end() :]}", {"i": layer[1]}


class _Found:
    """Looks tensors up and notes which ones were used."""

    def __init__(
        self,
        wanted: Mapping[str, Shape],
        names: FolderNames,
        tensors: Mapping[str, Tensor],
        heads: int,
    ) -> None:
        self._wanted, self._origins, self._tensors = wanted, names.origins, tensors
        self._heads = heads
        self.used: set[str] = set()

    def tensor(self, name: str) -> Tensor:
        """By GGUF's name, in the shape that is wanted."""
        pattern, numbers = _pattern(name)
        if pattern not in self._origins:
            raise UnsupportedModel(f"no name is known of the folder's tensor {name}")
        return self._made(self._origins[pattern], name, self._wanted[name], numbers)

    def _made(self, origin: Origin, name: str, shape: Shape, numbers: dict[str, str]) -> Tensor:
        """What an origin says, in a shape. name: GGUF's."""
        if isinstance(origin, str):
            return self._plain(origin, shape, numbers)
        if isinstance(origin, Either):
            there = [one for one in origin.origins if self._has(one, numbers)]
            return self._made((there or origin.origins)[0], name, shape, numbers)
        if isinstance(origin, Microscaled):
            return self._microscaled(origin, shape, numbers)
        if isinstance(origin, Stacked):
            rows = [self._made(one, name, shape[1:], numbers) for one in origin.rows]
            return StackView(rows)
        if isinstance(origin, Squeezed):
            return View(self._squeezed(origin, shape, numbers), shape)
        return self._changed(origin, name, shape, numbers)

    def _changed(
        self,
        origin: PlusOne
        | MinusExp
        | Scaled
        | Transposed
        | Rows
        | Tail
        | HeadRows
        | HeadParts
        | Alternate,
        name: str,
        shape: Shape,
        numbers: dict[str, str],
    ) -> Tensor:
        if isinstance(origin, (Rows, HeadRows, HeadParts)):
            return self._rows(origin, name, shape, numbers)
        if isinstance(origin, Tail):
            longer = (origin.skipped + shape[0], *shape[1:])
            return RowsView(self._made(origin.of, name, longer, numbers), shape, origin.skipped)
        if isinstance(origin, (PlusOne, MinusExp)):
            view = PlusOneView if isinstance(origin, PlusOne) else MinusExpView
            return view(self._made(origin.of, name, shape, numbers), shape)
        if isinstance(origin, Scaled):
            of, rows = self._made(origin.of, name, shape, numbers), origin.rows or shape[:1]
            return ScaledView(of, shape, origin.factors, rows)
        if isinstance(origin, Transposed):
            turned = (*shape[:-2], shape[-1], shape[-2])
            return TransposedView(self._made(origin.of, name, turned, numbers), shape)
        whole = list(shape)
        whole[origin.axis] *= 2
        of = self._made(origin.of, name, tuple(whole), numbers)
        return AlternateView(of, shape, origin.axis, origin.first)

    def _rows(
        self, origin: Rows | HeadRows | HeadParts, name: str, shape: Shape, numbers: dict[str, str]
    ) -> Tensor:
        if isinstance(origin, HeadParts):
            heads = (origin.heads * sum(origin.widths), *shape[1:])
            of = self._made(origin.of, name, heads, numbers)
            return HeadPartsView(of, shape, origin.heads, origin.widths, origin.parts)
        if isinstance(origin, HeadRows):
            of = self._made(origin.of, name, (origin.parts * shape[0], *shape[1:]), numbers)
            return HeadRowsView(of, shape, self._heads, origin.part, origin.parts)
        parts = [part.format(**numbers) for part in origin.parts]
        axis = -min(2, len(shape))
        counts = [self._wanted[part][axis] for part in parts]
        whole = list(shape)
        whole[axis] = sum(counts)
        of = self._made(origin.of, name, tuple(whole), numbers)
        return RowsView(of, shape, sum(counts[: parts.index(name)]))

    def _microscaled(self, origin: Microscaled, shape: Shape, numbers: dict[str, str]) -> Tensor:
        blocks = self._leaf(origin.of.format(**numbers), ("U8",))
        scales = self._leaf(origin.scales.format(**numbers), ("U8",))
        if shape[-1] % 32:
            raise UnsupportedModel(f"tensor {blocks.name}: rows of {shape[-1]} numbers in MXFP4")
        by_block = (*shape[:-1], shape[-1] // 32)
        self._shaped(scales, by_block)
        return MicroscaledView(self._shaped(blocks, (*by_block, 16)), shape, scales)

    def _squeezed(self, origin: Squeezed, shape: Shape, numbers: dict[str, str]) -> Tensor:
        assert isinstance(origin.of, str), "a tensor of the folder"
        tensor = self._leaf(origin.of.format(**numbers))
        is_vector = math.prod(tensor.shape) == math.prod(shape) and (
            len(tensor.shape) == 1 or len(shape) == 1
        )
        same = [one for one in tensor.shape if one != 1] == [one for one in shape if one != 1]
        if not (same or is_vector):
            raise _wrong_shape(tensor, shape)
        return tensor

    def _plain(self, pattern: str, shape: Shape, numbers: dict[str, str]) -> Tensor:
        if "{e}" not in pattern:
            return self._shaped(self._leaf(pattern.format(**numbers)), shape)
        stack = [
            self._shaped(self._leaf(pattern.format(**numbers, e=e)), shape[1:])
            for e in range(shape[0])
        ]
        for one in stack:
            if one.kind != stack[0].kind:
                raise UnsupportedModel(
                    f"tensor {one.name} of type {one.kind}, and {stack[0].name} of type "
                    f"{stack[0].kind}"
                )
        return StackView(stack)

    def _shaped(self, tensor: Tensor, shape: Shape) -> Tensor:
        if tensor.shape != shape:
            raise _wrong_shape(tensor, shape)
        return tensor

    def _leaf(self, name: str, kinds: Sequence[str] = FLOAT_KINDS) -> Tensor:
        if name not in self._tensors:
            raise ModelFileError(f"there is no tensor {name}")
        tensor = self._tensors[name]
        if tensor.kind not in (*kinds, *ZERO_POINT_FORMATS, *FLOAT8_FORMATS):
            known = ", ".join(kinds)
            raise UnsupportedModel(f"tensor {name} of type {tensor.kind}; supported: {known}")
        self.used.add(name)
        return tensor

    def _has(self, origin: Origin, numbers: dict[str, str]) -> bool:
        if isinstance(origin, str):
            return origin.format(**numbers, e=0) in self._tensors
        if isinstance(origin, Either):
            return any(self._has(one, numbers) for one in origin.origins)
        if isinstance(origin, Stacked):
            return all(self._has(one, numbers) for one in origin.rows)
        return self._has(origin.of, numbers)


def _wrong_shape(tensor: Tensor, expected: Shape) -> ModelFileError:
    return ModelFileError(f"tensor {tensor.name} has shape {tensor.shape}, expected {expected}")


def _fits(pattern: str, name: str) -> bool:
    number = re.escape(pattern)
    for part, fitting in (("{i}", r"\d+"), ("{e}", r"\d+"), ("{any}", ".+")):
        number = number.replace(re.escape(part), fitting)
    return re.fullmatch(number, name) is not None
