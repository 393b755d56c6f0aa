"""What errors in the columns of matrices cost, from a file of llama.cpp's llama-imatrix.

A file of GGUF has, for each matrix, `NAME.in_sum2` float32 [experts or 1, columns], the sums of
squares of what entered each column, and `NAME.counts` float32 [experts or 1, 1], how often. The
older form (.dat) is, in int32 and float32: the number of matrices; for each of them the length of
its name, the name, how many calls, how many values, and the values; then what is not needed here.
Source: tools/imatrix/imatrix.cpp and common/imatrix-loader.cpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, NoReturn

import numpy as np

from mlc_llm.errors import ModelFileError, UserError
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.plain_file import open_plain, read_plain
from mlc_llm.quantization.block_format import Floats

_SUMS, _COUNTS = ".in_sum2", ".counts"
_MOST_BYTES = 1 << 30
_LONGEST_NAME = 512


class Importance(NamedTuple):
    """What a file says, of the matrices that a model has."""

    found: Mapping[str, Floats]
    """float32 [columns], or [experts, columns], by GGUF's name."""
    matrices: int
    """Of the model."""


def above_zero(squares: Floats) -> Floats:
    """Mean squares, where a column that saw nothing counts a little."""
    raised: Floats = squares + np.float32(1e-3) * squares.mean()
    return raised


def by_expert(sums: Floats, counts: Floats) -> Floats:
    """Mean squares [experts, columns] of sums and counts [experts]. Experts that met no token get
    the mean of the others."""
    whole = sums.sum(axis=0) / np.maximum(counts.sum(), 1)
    means = sums / np.maximum(counts, 1)[:, None]
    chosen: Floats = np.where(counts[:, None] > 0, means, whole).astype(np.float32)
    return chosen


def read_importance(path: Path, plan: WeightPlan) -> Importance:
    """Read a file. Raises UserError naming the file and what is wrong with it."""
    try:
        with open_plain(path) as file:
            is_gguf = file.read(4) == b"GGUF"
        stated = _of_gguf(path) if is_gguf else _of_dat(path)
    except OSError as error:
        raise UserError(f"--imatrix {path}: {error.strerror}") from None
    except ModelFileError as error:
        raise UserError(f"--imatrix {error}") from None
    found, shapes = {}, {s.tensor: s.shape for sources in plan.matrices.values() for s in sources}
    for name, values in stated.items():
        if name in shapes:
            found[name] = above_zero(_shaped(path, name, values, shapes[name]))
    if not found:
        _fail(path, "it has no matrix of this model; is it of another model?")
    return Importance(found, len(shapes))


def _shaped(path: Path, name: str, values: Floats, shape: tuple[int, ...]) -> Floats:
    if not (np.isfinite(values).all() and values.min() >= 0):
        _fail(path, f"{name} has values that are no sums of squares")
    stack, columns = shape[:-2], shape[-1]
    if values.size == columns:
        return values.reshape(columns)
    if values.size != math.prod(stack) * columns:
        _fail(path, f"{name} has {values.size} values; the matrix has {columns} columns")
    return values.reshape(*stack, columns)


def _of_gguf(path: Path) -> dict[str, Floats]:
    tensors, found = GGUFFile.open(path).tensors, {}
    for name, tensor in tensors.items():
        if not name.endswith(_SUMS):
            continue
        stem = name.removesuffix(_SUMS)
        counts = tensors.get(stem + _COUNTS)
        if counts is None or counts.kind != "F32" or tensor.kind != "F32":
            _fail(path, f"{printable(stem)} has no counts, or not in float32")
        many, sums = counts.data.view("<f4"), tensor.data.view("<f4")
        if sums.size % many.size:
            _fail(path, f"{printable(stem)} has {sums.size} sums and {many.size} counts")
        found[stem] = by_expert(sums.reshape(many.size, -1), many)
    return found


def _of_dat(path: Path) -> dict[str, Floats]:
    data, place, found = read_plain(path, _MOST_BYTES), 0, {}

    def take(count: int) -> bytes:
        nonlocal place
        if count < 0 or place + count > len(data):
            _fail(path, "it is no file of llama-imatrix, or it ends too early")
        place += count
        return data[place - count : place]

    def number() -> int:
        return int.from_bytes(take(4), "little", signed=True)

    entries = number()
    if entries < 1:
        _fail(path, "it is no file of llama-imatrix")
    for _ in range(entries):
        length = number()
        if not 0 < length <= _LONGEST_NAME:
            _fail(path, "it is no file of llama-imatrix")
        name = take(length).decode("utf-8", "replace")
        calls, count = number(), number()
        values = np.frombuffer(take(4 * max(count, 1)), "<f4").astype(np.float32)
        found[name] = values / np.float32(max(calls, 1))
    return found


def _fail(path: Path, words: str) -> NoReturn:
    raise UserError(f"--imatrix {path}: {words}")
