"""The names of parameters in MLC LLM's folders.

They are the names of Transformers, with these differences: query, key and value are one matrix, as
are gate and up, and the matrices of all experts. Source: the loaders of MLC LLM's models,
mlc_llm/model/*/*_loader.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from mlc_llm.errors import UnsupportedModel
from mlc_llm.models.registry import ENCODERS, ROWS
from mlc_llm.models.tensor_names import Either, FolderNames, Origin, Stacked

Names: TypeAlias = dict[str, list[str]]
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
_UNLIKE = ("gpt-oss",)
"""Architectures whose matrices MLC LLM joins in an order of its own."""
HEAD = "lm_head"
HEADED = ("gpt2", "starcoder2")
"""Architectures whose folders have a head, which is the embedding once more where a model has none
of its own."""


class _Ways(NamedTuple):
    """How MLC LLM names an architecture's parameters."""

    qkv: str | None = "qkv_proj"
    """The joined matrix; None: it stays three."""
    prefix: str = ""
    others: tuple[tuple[str, str], ...] = ()
    """Patterns in names of Transformers, and what stands instead, in this order."""


_PHI3 = (
    (r"^model\.embed_tokens\.", "transformer.embd."),
    (r"^model\.layers\.", "transformer.h."),
    (r"^model\.norm\.", "transformer.norm."),
    (r"\.input_layernorm\.", ".ln."),
    (r"\.self_attn\.o_proj\.", ".mixer.out_proj."),
    (r"\.self_attn\.", ".mixer."),
)
_WAYS = {
    "qwen2": _Ways("c_attn"),
    "qwen3": _Ways("c_attn"),
    "qwen3moe": _Ways("c_attn"),
    "gemma3": _Ways(None, "language_model."),
    "phi3": _Ways(others=_PHI3),
    "starcoder2": _Ways("wqkv_pack"),
}
_EARLIER = ("phi3", "starcoder2")
"""Architectures whose folders were once written here with the names of all others."""


def names_in(architecture: str, tensors: Iterable[str], params: Iterable[str]) -> Names:
    """`mlc_names` of a folder with these parameters."""
    wanted = list(tensors)
    names = mlc_names(architecture, wanted)
    if architecture in _EARLIER:
        earlier = mlc_names(architecture, wanted, _Ways())
        if _stems(params) & (_stems(earlier) - _stems(names)):
            return earlier
    return names


def _stems(names: Iterable[str]) -> set[str]:
    """Names without what they end with, which differs where weights are quantised."""
    return {name.rpartition(".")[0] for name in names}


def mlc_names(architecture: str, tensors: Iterable[str], ways: _Ways | None = None) -> Names:
    """MLC LLM's name of each parameter -> GGUF's names of the tensors that it joins, in order.

    architecture: GGUF's name of it. ways: other ones than its own. Raises UnsupportedModel.
    """
    if architecture in _UNLIKE:
        raise UnsupportedModel(f"MLC LLM has its own order of weights in {architecture} models")
    if architecture in {row.gguf for row in ENCODERS}:
        raise UnsupportedModel(f"folders of MLC LLM have no encoders such as {architecture}")
    wanted, found = list(tensors), Names()
    names = _names_with(architecture, wanted)
    way = _WAYS.get(architecture, _Ways()) if ways is None else ways
    for tensor in wanted:
        found.setdefault(_name(way, names, tensor), []).append(tensor)
    return found


def _names_with(architecture: str, tensors: Sequence[str]) -> FolderNames:
    """The table of the architecture that has all of them: GGUF calls several of them "llama"."""
    tables = [row.names for row in ROWS if row.gguf == architecture]
    patterns = {_LAYER.sub("blk.{i}.", tensor) for tensor in tensors}
    return next((one for one in tables if patterns <= one.origins.keys()), tables[0])


def _name(way: _Ways, names: FolderNames, tensor: str) -> str:
    layer, pattern = _LAYER.match(tensor), _LAYER.sub("blk.{i}.", tensor)
    if pattern not in names.origins:
        raise UnsupportedModel(f"MLC LLM has no name for the tensor {tensor}")
    name = _folder_name(names.origins[pattern])
    if way.qkv is not None:
        name = re.sub(r"\.[qkv]_proj\.(weight|bias)$", rf".{way.qkv}.\1", name)
    for old, new in (*_JOINED, *way.others):
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
