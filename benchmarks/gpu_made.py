"""Models for the speeds of a GPU: libraries of real shapes, and weights that are made on the spot.

A library (some MB) is compiled where there is no GPU, and carried. Its weights (some GB) need not
be: a random part of 32 rows of each matrix is packed, and repeated for all rows.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from real_shapes import REAL_SHAPES, RealShape, metadata_of, tensor_sizes

from mlc_llm.backends.cuda.formats import BLOCK
from mlc_llm.backends.cuda.layout import CudaLayout
from mlc_llm.library.metadata import (
    INDEX_FILE,
    PARAMS_ALIGNMENT,
    PARAMS_FILE,
    rope_param,
    rope_scaling_param,
)
from mlc_llm.quantization.block_format import Grouped
from mlc_llm.runtime.library import read_metadata

MADE_FILE = "made.json"
SHAPES: Mapping[str, RealShape] = {
    "1b": replace(REAL_SHAPES["llama3.2-1b"], rope_factors=False),
    "8b": RealShape(
        "Llama 3.1 8B", "llama", 4096, 32, 32, 8, 128, 14336, 128_256, 500_000.0, tied_head=False,
        more={"rope.dimension_count": 128},
    ),
}  # fmt: skip
KINDS = {"q4": "Q4_0", "bf16": "BF16"}


@dataclass(frozen=True)
class Shaped:
    """A tensor of which nothing but its shape and its type is asked."""

    name: str
    shape: tuple[int, ...]
    kind: str


def names() -> list[str]:
    """Of all models: shape and type of weights."""
    return [f"{shape}-{kind}" for shape in SHAPES for kind in KINDS]


def compile_made(name: str, arch: str, folder: Path) -> None:
    """Compiles the library of a model into a folder, which is made. (Imports the compiler.)"""
    from mlc_llm.backends.registry import named_backend
    from mlc_llm.compiler.build import build_library
    from mlc_llm.compiler.weights import inverse_frequencies
    from mlc_llm.models.registry import read_gguf

    shape_name, kind_name = name.split("-")
    shape, kind = SHAPES[shape_name], KINDS[kind_name]
    tensors = {
        one: Shaped(one, sizes, "F32" if len(sizes) == 1 else kind)
        for one, sizes in tensor_sizes(shape)
    }
    plan = read_gguf(metadata_of(shape), tensors)
    folder.mkdir(parents=True, exist_ok=True)
    build_library(plan.spec, named_backend("cuda", arch=arch), folder)
    (rope,) = plan.spec.ropes
    matrices = {
        f"{prefix}.packed": [sum(one.count for one in sources), sources[0].width]
        for prefix, sources in plan.matrices.items()
    }
    made = {"kind": kind, "matrices": matrices, "rope": inverse_frequencies(rope, None).tolist()}
    (folder / MADE_FILE).write_text(json.dumps(made))


def make_weights(library: Path, folder: Path, seed: int = 0) -> None:
    """Writes packed weights for a library of `compile_made` into a folder, which is made."""
    made, rng = json.loads((library / MADE_FILE).read_text()), np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    entries, offset, checksum = [], 0, 0
    with (folder / PARAMS_FILE).open("wb") as file:
        for name, shape, dtype, part, times in _parameters(library, made, rng):
            padding = bytes(-offset % PARAMS_ALIGNMENT)
            entries.append(
                {"name": name, "shape": shape, "dtype": dtype, "offset": offset + len(padding)}
            )
            for data in (padding, *[part] * times):
                file.write(data)
                checksum = zlib.crc32(data, checksum)
            offset = file.tell()
    index = {"size": offset, "crc32": checksum, "tensors": entries}
    (folder / INDEX_FILE).write_text(json.dumps(index))


def _parameters(
    library: Path, made: Mapping[str, Any], rng: np.random.Generator
) -> Iterator[tuple[str, Sequence[int], str, bytes, int]]:
    """Name, shape and type of each, a part of its bytes, and how often that comes."""
    layout, parts = CudaLayout(made["kind"]), dict[int, bytes]()
    for one in read_metadata(library).params:
        size = math.prod(one.shape) * np.dtype(one.dtype).itemsize
        if one.name in made["matrices"]:
            _, columns = made["matrices"][one.name]
            if columns not in parts:
                parts[columns] = layout.pack(_random(made["kind"], columns, rng)).tobytes()
            part = parts[columns]
        else:
            part = np.ones(one.shape, one.dtype).tobytes()
        assert size % len(part) == 0, one.name
        yield one.name, one.shape, one.dtype, part, size // len(part)
    rope = np.array(made["rope"], np.float32)
    for name, values in (
        (rope_scaling_param(0), np.array([1, 0], np.float32)),
        (rope_param(0), rope),
    ):
        yield name, values.shape, "float32", values.tobytes(), 1


def _random(kind: str, columns: int, rng: np.random.Generator) -> Any:
    """32 rows whose product with a vector is about as large as the vector."""
    scale = np.float32(columns**-0.5)
    if kind != "Q4_0":
        return rng.standard_normal((BLOCK, columns), np.float32) * scale
    q = rng.integers(0, 16, (BLOCK, columns), np.uint8)
    steps = np.full((BLOCK, columns // 32), np.float16(scale / 4.6), np.float32)
    return Grouped(q, 4, 32, steps, None, 8, True)
