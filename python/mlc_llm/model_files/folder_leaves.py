"""Which tensor of a Hugging Face folder each matrix of a model is made of."""

from __future__ import annotations

from collections.abc import Collection, Container
from typing import NamedTuple

from mlc_llm.model_files.folder_tensors import fused_parts, leaf_of
from mlc_llm.models.tensor_names import FolderNames

_JOINED, _FIRST = ".attn_qkv.", ".attn_q."
"""What a file may have as one matrix, and its first part, which a folder's table knows. A gate and
what it is for have the name of the second where they are one matrix, which the table knows too."""


class Leaf(NamedTuple):
    """A tensor of a folder."""

    name: str
    is_whole: bool
    """The matrix has all its rows, of which the folder's table makes several matrices."""


def folder_leaves(
    matrices: Collection[str], names: FolderNames, tensors: Container[str]
) -> dict[str, Leaf]:
    """By GGUF's names of a model's matrices; left out are those that none of the tensors makes."""
    found = {}
    for name in matrices:
        known = _known_as(name, names, tensors)
        leaf = leaf_of(known, names, tensors)
        if leaf is not None:
            parts = fused_parts(known, names, tensors)
            found[name] = Leaf(leaf, not all(part in matrices for part in parts))
    return found


def _known_as(name: str, names: FolderNames, tensors: Container[str]) -> str:
    """The name that the table has for a matrix, or for its first part."""
    first = name.replace(_JOINED, _FIRST)
    is_joined = leaf_of(name, names, tensors) is None and fused_parts(first, names, tensors)
    return first if is_joined else name
