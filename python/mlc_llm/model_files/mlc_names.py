"""The names of parameters in MLC LLM's folders.

They are the names of Transformers, with these differences: query, key and value are one matrix, as
are gate and up, and the matrices of all experts. Source: the loaders of MLC LLM's models,
mlc_llm/model/*/*_loader.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.registry import ENCODERS, ROWS
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, Stacked

_LAYER = re.compile(r"blk\.(\d+)\.")
_JOINED = (
    (r"\.(gate|up)_proj\.(weight|bias)$", r".gate_up_proj.\2"),
    (r"\.experts\.\{e\}\.gate_up_proj\.weight$", ".moe_gate_up_proj.weight"),
    (r"\.experts\.\{e\}\.down_proj\.weight$", ".moe_down_proj.weight"),
    (r"\.block_sparse_moe\.experts\.\{e\}\.w[13]\.weight$", ".moe.e1_e3.weight"),
    (r"\.block_sparse_moe\.experts\.\{e\}\.w2\.weight$", ".moe.e2.weight"),
    (r"\.block_sparse_moe\.gate\.weight$", ".moe.gate.weight"),
)
"""Patterns in names of Transformers, and what MLC LLM writes instead, in this order."""
_UNLIKE = ("gptneox", "gpt-oss")
"""Architectures whose matrices MLC LLM joins in an order of its own."""


class _Ways(NamedTuple):
    """How MLC LLM names an architecture's parameters."""

    qkv: str | None = "qkv_proj"
    """The joined matrix; None: it stays three."""
    prefix: str = ""


_WAYS = {
    "qwen2": _Ways("c_attn"),
    "qwen3": _Ways("c_attn"),
    "qwen3moe": _Ways("c_attn"),
    "gemma3": _Ways(None, "language_model."),
}


def mlc_names(architecture: str, tensors: Iterable[str]) -> dict[str, list[str]]:
    """MLC LLM's name of each parameter -> GGUF's names of the tensors that it joins, in order.

    architecture: GGUF's name of it. Raises UnsupportedModel.
    """
    if architecture in _UNLIKE:
        raise UnsupportedModel(f"MLC LLM has its own order of weights in {architecture} models")
    if architecture in {row.gguf for row in ENCODERS}:
        raise UnsupportedModel(f"folders of MLC LLM have no encoders such as {architecture}")
    wanted, found = list(tensors), dict[str, list[str]]()
    names = _names_with(architecture, wanted)
    for tensor in wanted:
        found.setdefault(_name(architecture, names, tensor), []).append(tensor)
    return found


def _names_with(architecture: str, tensors: Sequence[str]) -> FolderNames:
    """The table of the architecture that has all of them: GGUF calls several of them "llama"."""
    tables = [row.names for row in ROWS if row.gguf == architecture]
    patterns = {_LAYER.sub("blk.{i}.", tensor) for tensor in tensors}
    return next((one for one in tables if patterns <= one.origins.keys()), tables[0])


def _name(architecture: str, names: FolderNames, tensor: str) -> str:
    layer, pattern = _LAYER.match(tensor), _LAYER.sub("blk.{i}.", tensor)
    if pattern not in names.origins:
        raise UnsupportedModel(f"MLC LLM has no name for the tensor {tensor}")
    way = _WAYS.get(architecture, _Ways())
    name = _folder_name(names.origins[pattern])
    if way.qkv is not None:
        name = re.sub(r"\.[qkv]_proj\.(weight|bias)$", rf".{way.qkv}.\1", name)
    for old, new in _JOINED:
        name = re.sub(old, new, name)
    return way.prefix + name.replace("{i}", "" if layer is None else layer[1])


def _folder_name(origin: Origin) -> str:
    """The name of Transformers; of several, the one for plain matrices."""
    while not isinstance(origin, str):
        if isinstance(origin, Stacked):
            origin = origin.rows[0]
        else:
            origin = origin.origins[0] if isinstance(origin, Either) else origin.of
    return origin
