"""Where the tensors lie in a Hugging Face folder, for each of GGUF's names.

A `FolderNames` maps a name of GGUF to its origin: the folder's own name, or a change of what lies
under one. In all names {i} is the number of the layer. {e} is the number of an expert: the matrices
of all experts make one tensor [experts, rows, columns]. Names are those of Transformers.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from mlc_llm.record import record


class PlusOne(NamedTuple):
    """Weights of a norm that the model adds 1 to (Gemma); GGUF holds the sum."""

    of: Origin


class Transposed(NamedTuple):
    """A matrix [columns, rows], or a stack of them."""

    of: Origin


class MinusExp(NamedTuple):
    """-e^value of each number, in float32; GGUF holds that (Mamba 2)."""

    of: Origin


class Scaled(NamedTuple):
    """A tensor whose rows are multiplied by numbers of the config, in float32."""

    of: Origin
    factors: tuple[float, ...]
    rows: tuple[int, ...] = ()
    """So many rows, from the first on, have each factor; (): all have the only one."""


class Squeezed(NamedTuple):
    """A tensor with other axes of the size 1; a vector of all its numbers, or as a matrix."""

    of: Origin


class Stacked(NamedTuple):
    """Rows, each of which is a vector of its own."""

    rows: tuple[Origin, ...]


class Rows(NamedTuple):
    """Some rows of a fused matrix, of each one in a stack, or of a vector."""

    of: Origin
    parts: tuple[str, ...]
    """GGUF's names of all its parts, from the first row on."""


class Alternate(NamedTuple):
    """Every other row of a matrix or of each one in a stack, or every other number of a row."""

    of: Origin
    axis: Literal[-2, -1]
    """-2: rows, -1: numbers."""
    first: Literal[0, 1]


class Tail(NamedTuple):
    """All rows of a table but the first ones."""

    of: Origin
    skipped: int


class HeadRows(NamedTuple):
    """Some rows of each head of a fused matrix or vector, in which head stands behind head."""

    of: Origin
    part: int
    parts: int


class HeadParts(NamedTuple):
    """Some parts of the rows of each head of a fused matrix, in which head stands behind head: one
    part of all heads behind another."""

    of: Origin
    heads: int
    widths: tuple[int, ...]
    """Rows of each part of a head."""
    parts: tuple[int, ...]
    """The parts that are meant, in order."""


class Microscaled(NamedTuple):
    """A stack of matrices in MXFP4 (Open Compute Project 2023), as two tensors of bytes.

    A block is 32 numbers of 4 bits, two neighbours in a byte, the first one in its low half. It has
    an exponent of 8 bits.
    """

    of: str
    """Blocks [matrices, rows, blocks, 16]."""
    scales: str
    """Exponents [matrices, rows, blocks]."""


class Either(NamedTuple):
    """The first origin that the folder has."""

    origins: tuple[Origin, ...]


Origin: TypeAlias = (
    str
    | PlusOne
    | MinusExp
    | Scaled
    | Transposed
    | Squeezed
    | Stacked
    | Rows
    | Tail
    | HeadRows
    | HeadParts
    | Alternate
    | Microscaled
    | Either
)


@record()
class FolderNames:
    """A table of names. `names | {...}` is the table with some of them changed or added."""

    origins: Mapping[str, Origin]
    """By GGUF's name."""
    ignored: tuple[str, ...] = ()
    """Tensors of the folder that are not needed; {any} stands for any text in their names."""
    interleaved_rope: bool = False
    """As in `plan_weights`."""

    def __or__(self, changed: Mapping[str, Origin]) -> FolderNames:
        return replace(self, origins={**self.origins, **changed})

    def ignoring(self, *names: str) -> FolderNames:
        """The table that knows more tensors which are not needed."""
        return replace(self, ignored=self.ignored + names)

    def of_rows(self) -> FolderNames:
        """The table of factors [rows, rank] of the matrices: nothing of them is transposed, and
        nothing ignored."""
        origins = {name: _as_rows(one) for name, one in self.origins.items()}
        return replace(self, origins=origins, ignored=())


def _as_rows(origin: Origin) -> Origin:
    if isinstance(origin, str | Microscaled | Stacked):
        return origin
    if isinstance(origin, Either):
        return Either(tuple(map(_as_rows, origin.origins)))
    of = _as_rows(origin.of)
    return of if isinstance(origin, Transposed) else origin._replace(of=of)


def has_origin(origin: Origin, tensors: Container[str]) -> bool:
    """Whether a folder has what an origin says, of a tensor that belongs to no layer."""
    if isinstance(origin, str):
        return origin in tensors
    if isinstance(origin, Either):
        return any(has_origin(one, tensors) for one in origin.origins)
    if isinstance(origin, Stacked):
        return all(has_origin(one, tensors) for one in origin.rows)
    return has_origin(origin.of, tensors)


def fused(of: Origin, *parts: str) -> dict[str, Origin]:
    """The origins of all parts of a fused matrix or vector. parts: as in `Rows`."""
    return {part: Rows(of, parts) for part in parts}


def layers(names: Mapping[str, str], end: str = "weight") -> dict[str, Origin]:
    """Names behind the layer's number, without their end, as names in full."""
    return {
        f"blk.{{i}}.{gguf}.{end}": f"model.layers.{{i}}.{folder}.{end}"
        for gguf, folder in names.items()
    }


_MATRICES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_NORMS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}

LLAMA_NAMES = FolderNames(
    {
        "token_embd.weight": "model.embed_tokens.weight",
        "output_norm.weight": "model.norm.weight",
        "output.weight": "lm_head.weight",
        **layers(_MATRICES | _NORMS),
        **layers(_MATRICES, "bias"),
    },
    ignored=("model.layers.{i}.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq"),
)
"""The names of a Llama, and of most models that were built after it."""

_QKV = ("blk.{i}.attn_q", "blk.{i}.attn_k", "blk.{i}.attn_v")
FUSED_NETWORK: Mapping[str, Origin] = fused(
    "model.layers.{i}.mlp.gate_up_proj.weight",
    "blk.{i}.ffn_gate.weight",
    "blk.{i}.ffn_up.weight",
)
"""A gate and what it is for in one matrix."""
LAYER_NORM_BIASES: Mapping[str, Origin] = {
    "output_norm.bias": "model.norm.bias",
    **layers({name: _NORMS[name] for name in ("attn_norm", "ffn_norm")}, "bias"),
}


def fused_qkv(of: Origin, end: str = "weight") -> dict[str, Origin]:
    """Queries, keys and values in one matrix, or their biases in one vector."""
    return fused(of, *(f"{name}.{end}" for name in _QKV))


def fused_heads(of: Origin, end: str = "weight") -> dict[str, Origin]:
    """The same where the queries, keys and values of a head stand together, head behind head."""
    return {f"{name}.{end}": HeadRows(of, i, len(_QKV)) for i, name in enumerate(_QKV)}


_EXPERTS = "model.layers.{i}.mlp.experts"
_FUSED_EXPERTS = fused(
    f"{_EXPERTS}.gate_up_proj", "blk.{i}.ffn_gate_exps.weight", "blk.{i}.ffn_up_exps.weight"
)
EXPERT_NAMES: Mapping[str, Origin] = {
    "blk.{i}.ffn_gate_inp.weight": "model.layers.{i}.mlp.gate.weight",
    "blk.{i}.ffn_gate_exps.weight": Either(
        (f"{_EXPERTS}.{{e}}.gate_proj.weight", _FUSED_EXPERTS["blk.{i}.ffn_gate_exps.weight"])
    ),
    "blk.{i}.ffn_up_exps.weight": Either(
        (f"{_EXPERTS}.{{e}}.up_proj.weight", _FUSED_EXPERTS["blk.{i}.ffn_up_exps.weight"])
    ),
    "blk.{i}.ffn_down_exps.weight": Either(
        (f"{_EXPERTS}.{{e}}.down_proj.weight", f"{_EXPERTS}.down_proj")
    ),
}
"""The names of a mixture of experts: a matrix for each expert, or stacks of them."""
