"""What a model library says of itself: written by the compiler, read by the runtime.

A library is a folder of the files that its backend makes and of `metadata.json`, which records the
hashes of the others and of itself. Packed weights are a folder of `params.bin` and `params.json`.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

from mlc_llm.library.page_format import block_elements, element_bytes
from mlc_llm.library.workspace_info import WorkspaceInfo
from mlc_llm.pooling import Pooling
from mlc_llm.record import record

METADATA_FILE = "metadata.json"
PARAMS_FILE = "params.bin"
INDEX_FILE = "params.json"
PARAMS_ALIGNMENT = 64
"""Packed tensors follow each other in PARAMS_FILE, each at the next multiple of this."""
VERSION = 23
FIRST_ROWS = 512
"""Rows of a rotary table that packed weights have."""


def rope_param(index: int) -> str:
    """Name of the float32 [dim/2] inverse frequencies of a rotary embedding among the packed
    parameters; the runtime reads it, `forward` does not."""
    return f"rope_inverse_frequencies.{index}"


def long_rope_param(index: int) -> str:
    """The same of those for long sequences, which are there if the second number of
    `rope_scaling_param` is not 0."""
    return f"rope_long_inverse_frequencies.{index}"


def rope_rows_param(index: int) -> str:
    """The same of the float32 [FIRST_ROWS, 2, dim/2] rows of the rotary table for the first
    positions (`rope_rows.py`)."""
    return f"rope_rows.{index}"


def long_rope_rows_param(index: int) -> str:
    """The same of those for long sequences."""
    return f"rope_long_rows.{index}"


def rope_scaling_param(index: int) -> str:
    """The same of the float32 [2] numbers `RopeSpec.magnitude` and `RopeSpec.long_after`."""
    return f"rope_scaling.{index}"


class BrokenLibrary(Exception):
    """A folder holds no intact model library. Building it again mends that."""


@record()
class ParamInfo:
    """One tensor of the packed parameters, in the order `forward` takes them."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@record()
class KVGroupInfo:
    """Layers that share a page table: keys and values of one shape, seen through one window.

    A page tensor of one layer is [pages, kv_heads, 2, elements of a block] (`page_format.py`).
    """

    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    window: int | None
    """Tokens that the model itself lets a token see; None: all before it."""
    query_block: int
    """Tokens of one sequence that a row of `query_blocks` may cover."""
    fast_query_block: int
    """The same among the `fast_tokens`."""
    kv_split: int
    """Pages of a sequence that are summed up together: a page list may lack a whole split that no
    token sees, and no bit changes."""
    apart: int = 1
    """Tokens of a row, at most, that get a query block each."""


@record()
class KVInfo:
    """The KV pages of all layers that have attention."""

    page_size: int
    dtype: str
    groups: tuple[KVGroupInfo, ...]

    def bytes_per_page(self, group: KVGroupInfo) -> int:
        """Of all layers of the group."""
        return len(group.layers) * 2 * group.kv_heads * self.block_bytes(group)

    def block_bytes(self, group: KVGroupInfo) -> int:
        """Of the keys, or the values, of a page of one KV head."""
        return self.block_elements(group) * element_bytes(self.dtype)

    def block_elements(self, group: KVGroupInfo) -> int:
        """Of the same."""
        return block_elements(self.dtype, self.page_size, group.head_dim)


@record()
class StateInfo:
    """What a recurrent layer keeps for each sequence, as a tensor float32 [slots, *shape]; a layer
    may have several."""

    layer: int
    shape: tuple[int, ...]
    by_chunk: bool
    """It has a row for each base instead: it changes behind every `state_chunk` tokens."""


@record()
class AdaptedInfo:
    """A matrix to which LoRA adapters may add."""

    name: str
    """Of its parameter."""
    columns: int
    widths: tuple[int, ...]
    """Rows of each part."""
    dtype: str
    """Of the factors: float32 or float16."""


@record()
class EncoderInfo:
    """As in `EncoderSpec`."""

    token_types: int
    labels: int
    pair_pooling: Pooling
    """Of pairs."""
    reaches: tuple[int, ...]
    width: int
    """Numbers of a text's vector."""
    is_projected: bool
    """It is made of the pooled vector by matrices."""


@record()
class TowerInfo:
    """Of a tower of images, as in `TowerSpec`."""

    patches: int
    patch_numbers: int
    tokens: int
    width: int


@record()
class SightInfo:
    """How a decoder takes the vectors of images."""

    is_whole: bool
    """A token of an image sees all of the image's tokens."""
    groups: tuple[int, ...]
    """Groups of layers that read `first_seen`."""


@record()
class Metadata:
    """Written by the compiler, read by the runtime."""

    version: int
    architecture: str
    backend: str
    """Name of the kernels, as `backends/registry.py` knows it."""
    target: str
    tvm_version: str
    vocab_size: int
    """Tokens that may be chosen; the rows of logits behind them mean nothing."""
    padded_vocab: int
    hidden_size: int
    has_fast_tokens: bool
    """`forward` may compute its first `fast_tokens` tokens less exactly, which is faster."""
    is_fast: bool
    """It is for `precision="fast"`, and for nothing else."""
    requires: tuple[str, ...]
    """What the code needs that the system has to permit."""
    workspaces: dict[str, tuple[WorkspaceInfo, ...]]
    """Of each function that takes memory for what it computes, as arguments behind its weights."""
    has_window: bool
    """It is for a sliding window of the engine, and for nothing else."""
    ropes: int
    """Number of rotary embeddings."""
    kv: KVInfo
    states: tuple[StateInfo, ...]
    """Of the layers that keep no pages."""
    state_chunk: int
    """Tokens behind which bases change; 1 if there are none."""
    adapted: tuple[AdaptedInfo, ...]
    """Empty: the library is for no adapters."""
    encoder: EncoderInfo | None
    """None: the model is a decoder, or draft heads."""
    eagle_group: int | None
    """The KV group of an EAGLE head, which drafts tokens for the model; None: there is none."""
    tower: TowerInfo | None
    """None: it is no tower of images."""
    sight: SightInfo | None
    """None: the decoder takes no images."""
    medusa_heads: int
    """Heads that draft tokens for another model; 0: it is a model."""
    shards: int
    """Ranks that compute the model together, each with a library and weights of its own."""
    params: tuple[ParamInfo, ...]
    sha256: dict[str, str]
    """Of the other files, in the order in which they are linked."""

    def to_json(self) -> str:
        raw = asdict(self)
        return json.dumps({**raw, "own_sha256": _digest(raw)}, indent=1)

    @staticmethod
    def from_json(text: str) -> Metadata:
        """Raises KeyError, TypeError or ValueError for anything but our own metadata."""
        raw = json.loads(text)
        if raw["version"] != VERSION:
            raise ValueError(f"library version {raw['version']}, expected {VERSION}")
        if raw.pop("own_sha256") != _digest(raw):
            raise ValueError("the metadata does not match its own hash")
        raw["kv"] = _kv(raw["kv"])
        raw["states"] = tuple(StateInfo(**{**s, "shape": tuple(s["shape"])}) for s in raw["states"])
        raw["adapted"] = tuple(
            AdaptedInfo(**{**one, "widths": tuple(one["widths"])}) for one in raw["adapted"]
        )
        raw["encoder"] = None if raw["encoder"] is None else _encoder(raw["encoder"])
        raw["tower"] = None if raw["tower"] is None else TowerInfo(**raw["tower"])
        raw["sight"] = None if raw["sight"] is None else _sight(raw["sight"])
        raw["workspaces"] = {
            name: tuple(WorkspaceInfo(**one) for one in infos)
            for name, infos in raw["workspaces"].items()
        }
        raw["requires"] = tuple(raw["requires"])
        raw["params"] = tuple(
            ParamInfo(p["name"], tuple(p["shape"]), p["dtype"]) for p in raw["params"]
        )
        return Metadata(**raw)


def _kv(raw: dict[str, Any]) -> KVInfo:
    groups = (KVGroupInfo(**{**group, "layers": tuple(group["layers"])}) for group in raw["groups"])
    return KVInfo(raw["page_size"], raw["dtype"], tuple(groups))


def _encoder(raw: dict[str, Any]) -> EncoderInfo:
    return EncoderInfo(**{**raw, "reaches": tuple(raw["reaches"])})


def _sight(raw: dict[str, Any]) -> SightInfo:
    return SightInfo(raw["is_whole"], tuple(raw["groups"]))


def _digest(raw: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
