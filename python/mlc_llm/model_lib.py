"""The contract of compiler and runtime: a model library's functions and its metadata.

A library is a folder of three files: `kernels.o` (machine code), `vm.bin` (VM bytecode) and
`metadata.json`, which records the hashes of the other two and of itself. Everything is int32 and
float32 unless said otherwise.

forward(tokens [m], rope [p, 2, head_dim/2], slot [m], position [m], tiles [t, 3], page_ids [n],
        window [2], coarse_rows [1], logit_rows [s], pages (one tensor a layer), params)
        -> logits [s, padded_vocab]
    In a library that `has_window` position is [3 * m]: each token's place in its page list, then
    its row of rope, then that of its query for sinks.
top_tokens(logits [s, padded_vocab], rows [r]) -> token [r, 20], logprob [r, 20], log_total [r]
edit_logits(place [e, 2], number [e, 3], masked [r], allowed [r, w], logits [s, padded_vocab])
        -> the logits, changed in place
sample(logits [s, padded_vocab], options [s, 4], top_k [s]) -> token [s], or NO_TOKEN
copy_pages(source [n], target [n], pages) -> the pages, changed in place
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

FORWARD = "forward"
TOP_TOKENS = "top_tokens"
EDIT_LOGITS = "edit_logits"
SAMPLE = "sample"
COPY_PAGES = "copy_pages"

NO_TOKEN = -1
"""From `sample`: the row's logits are not finite, or nothing is allowed."""

KERNELS_FILE = "kernels.o"
BYTECODE_FILE = "vm.bin"
METADATA_FILE = "metadata.json"
PARAMS_FILE = "params.bin"
INDEX_FILE = "params.json"
ROPE_PARAM = "rope_inverse_frequencies"
"""float32 [head_dim/2] among the packed parameters; the runtime reads it, `forward` does not."""
PARAMS_ALIGNMENT = 64
"""Packed tensors follow each other in PARAMS_FILE, each at the next multiple of this."""
VERSION = 4


@dataclass(frozen=True)
class ParamInfo:
    """One tensor of the packed parameters, in the order `forward` takes them."""

    name: str
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class KVInfo:
    """What a KV page tensor of one layer looks like: [pages, kv_heads, 2, page_size * head_dim]."""

    num_layers: int
    kv_heads: int
    head_dim: int
    page_size: int
    dtype: str
    query_tile: int
    """Tokens of one sequence that a row of `tiles` may cover."""
    coarse_tile: int
    """The same if they are coarse."""
    section_pages: int
    """Pages of a sequence that are summed up together: a page list may lack a whole section that
    no token sees, and no bit changes."""

    @property
    def bytes_per_page(self) -> int:
        """Over all layers."""
        width = {"float16": 2, "float32": 4}[self.dtype]
        return self.num_layers * 2 * self.kv_heads * self.page_size * self.head_dim * width


@dataclass(frozen=True)
class Metadata:
    """Written by the compiler, read by the runtime."""

    version: int
    architecture: str
    isa: str
    target: str
    tvm_version: str
    vocab_size: int
    """Tokens that may be chosen; the rows of logits behind them mean nothing."""
    padded_vocab: int
    has_coarse_rows: bool
    """`forward` may compute its first `coarse_rows` tokens less exactly, which is faster."""
    has_tiles: bool
    """Kernels use tile registers, for which a process has to ask."""
    has_window: bool
    """It is for sliding windows, and for nothing else."""
    kv: KVInfo
    params: tuple[ParamInfo, ...]
    sha256: dict[str, str]
    """Of the other two files."""

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
        raw["kv"] = KVInfo(**raw["kv"])
        raw["params"] = tuple(
            ParamInfo(p["name"], tuple(p["shape"]), p["dtype"]) for p in raw["params"]
        )
        return Metadata(**raw)


def _digest(raw: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(raw, sort_keys=True).encode()).hexdigest()
