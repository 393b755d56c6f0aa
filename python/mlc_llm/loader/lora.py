"""What a LoRA adapter is, whichever format its files have (Hu et al. 2021, arXiv:2106.09685).

To a matrix W it adds scale * up @ down, a product of a tall and a wide matrix of small rank. The
values are read later; sizes are checked here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf_cursor import printable
from mlc_llm.loader.gguf_tensors import GGUFTensor
from mlc_llm.record import record

MAX_RANK = 1024
"""More is no small product any more."""
DOWN, UP = "down", "up"


class Factors(NamedTuple):
    """What is added to one matrix [rows, columns]."""

    down: GGUFTensor
    """[rank, columns]."""
    up: GGUFTensor
    """[rows, rank]."""
    scale: float

    @property
    def rank(self) -> int:
        return self.down.shape[0]


@record()
class LoraAdapter:
    """An opened adapter. Its headers are known to be sound; no value was read."""

    path: Path
    architecture: str | None
    """`general.architecture` of a GGUF file; None: a PEFT folder, which does not say it."""
    factors: Mapping[str, Factors]
    """By the name of the matrix: GGUF's, or that of a Hugging Face folder."""
    opened: tuple[tuple[Path, os.stat_result], ...]
    """All files that decide the values, each as it was when it was opened."""

    @property
    def rank(self) -> int:
        """The largest."""
        return max(one.rank for one in self.factors.values())


def pairs_of(
    path: Path, halves: Iterable[tuple[str, str, GGUFTensor]]
) -> dict[str, tuple[GGUFTensor, GGUFTensor]]:
    """Both factors of each matrix. halves: the matrix, DOWN or UP, and the tensor.

    Raises ModelFileError for a factor without the other one or of sizes that do not fit it,
    UnsupportedModel for a rank over MAX_RANK.
    """
    found: dict[str, dict[str, GGUFTensor]] = {}
    for matrix, half, tensor in halves:
        found.setdefault(matrix, {})[half] = tensor
    if not found:
        raise ModelFileError(f"{path}: there is no tensor of an adapter in it")
    pairs = {}
    for matrix, one in found.items():
        if len(one) < 2:
            (tensor,) = one.values()
            raise ModelFileError(f"{path}: tensor {printable(tensor.name)} has no other half")
        pairs[matrix] = _checked(path, one[DOWN], one[UP])
    return pairs


def _checked(path: Path, down: GGUFTensor, up: GGUFTensor) -> tuple[GGUFTensor, GGUFTensor]:
    for one in (down, up):
        if len(one.shape) != 2 or 0 in one.shape:
            raise UnsupportedModel(
                f"{path}: tensor {printable(one.name)} of shape {one.shape}; only adapters of "
                "matrices are supported"
            )
    if down.shape[0] != up.shape[1]:
        raise ModelFileError(
            f"{path}: tensor {printable(down.name)} of shape {down.shape} does not fit "
            f"{printable(up.name)} of shape {up.shape}"
        )
    if down.shape[0] > MAX_RANK:
        raise UnsupportedModel(
            f"{path}: tensor {printable(down.name)} has rank {down.shape[0]}; at most {MAX_RANK} "
            "is supported"
        )
    return down, up
