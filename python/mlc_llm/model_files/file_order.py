"""In which order a model's files have the rows and columns of a Hugging Face folder's matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.head_order import Order, columns_in_turn, rows_in_turn
from mlc_llm.models.recurrent import GatedDeltaSpec
from mlc_llm.models.row_order import row_order
from mlc_llm.models.sources import PairedRows, Source

Floats = npt.NDArray[np.float32]
PAIRED = ("granitehybrid", "smollm3")
"""Architectures of GGUF whose converter pairs the rows of all queries and keys, and of which some
layers, or all, do not rotate: no plan says it of these, since their own logits need no order."""


class FileOrder(NamedTuple):
    """Which row and which column of the folder's matrix stands at each place of the file's."""

    rows: Order | slice = slice(None)
    columns: Order | slice = slice(None)

    def of(self, down: Floats, up: Floats) -> tuple[Floats, Floats]:
        """The factors of a change, down [rank, columns] and up [rows, rank], in this order."""
        return np.ascontiguousarray(down[:, self.columns]), np.ascontiguousarray(up[self.rows])


def file_order(files: ModelFiles, source: Source, *, folder_pairs: bool) -> FileOrder:
    """Of a layer's matrix. folder_pairs: the folder pairs neighbouring rows too."""
    layer, _, part = source.tensor.removeprefix("blk.").partition(".")
    spec = files.plan().spec
    mixer = spec.layers[int(layer)].mixer
    if isinstance(mixer, GatedDeltaSpec):
        if not mixer.in_turn:
            return FileOrder()
        whole = slice(None)
        rows, columns = rows_in_turn(mixer), columns_in_turn(mixer)
        return FileOrder(rows.get(part, whole), columns.get(part, whole))
    paired = source.paired
    if isinstance(files, GGUFModel) and spec.architecture in PAIRED:
        paired = paired or _unrotated(mixer, part)
    if paired is None or folder_pairs:
        return FileOrder()
    return FileOrder(np.argsort(row_order(replace(source, paired=paired), source.shape[0])))


def _unrotated(mixer: object, part: str) -> PairedRows | None:
    """The pairs of a matrix that nothing rotates."""
    if not isinstance(mixer, AttentionSpec):
        return None
    heads = {"attn_q.weight": mixer.heads, "attn_k.weight": mixer.kv_heads}.get(part)
    return None if heads is None else PairedRows(heads, mixer.head_dim, mixer.head_dim)
