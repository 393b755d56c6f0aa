"""What the operations of a model take, beside plain tensors (`Ops` in `ops.py`).

Tensors are those of the time when a library is built. No TVM is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from mlc_llm.record import record

if TYPE_CHECKING:
    from tvm.relax.frontend import nn
    from tvm.relax.frontend.nn import Tensor

Matrix: TypeAlias = "nn.Module"
"""What `Ops.matrix` or `Ops.expert_matrices` has made: a module with the parameter `packed`."""
Input: TypeAlias = object
"""What `Ops.linear` multiplies: a tensor, or what `norm` and `gated` return, which a backend may
compute as a part of the product."""


class Part(NamedTuple):
    """A part of a joined result: the tensor, and the column that the part begins with."""

    tensor: Tensor
    start: int = 0
    bias: Tensor | None = None
    """float32 [width]: whoever reads the part adds it."""


@record()
class HeadNorms:
    """Weights of the norms of queries and keys, float32 [head_dim] for each head alone, or
    [heads * head_dim] for all heads of a token together (`AttentionSpec.qk_norm`). That of keys is
    not used by a layer that shares them."""

    query: Tensor
    key: Tensor
    eps: float


@record()
class ExpertBiases:
    """Biases of a mixture of experts: float32 [experts] of the router, else [experts, rows]."""

    router: Tensor
    gate: Tensor
    up: Tensor
    down: Tensor


@record()
class ExpertMatrices:
    """What `Ops.matrix` and `Ops.expert_matrices` have made for a mixture of experts."""

    router: Matrix
    gate: Matrix
    up: Matrix
    down: Matrix
    biases: ExpertBiases | None = None
    choice_bias: Tensor | None = None
    """float32 [experts]; see `ExpertsSpec`."""


@record()
class LayerInputs:
    """The inputs of a step that a layer's attention reads (shapes in `library/signatures.py`): the
    tokens' positions, tables of its group of layers, and its pages."""

    position: Tensor
    sink_position: Tensor
    rope: Tensor | None
    """None: the layer does not rotate."""
    slot: Tensor
    place: Tensor
    query_blocks: Tensor
    page_ids: Tensor
    window: Tensor
    pages: Tensor
    first_seen: Tensor | None = None
    """int32 [tokens], the first place that each token sees, where the spec has a reach; else
    `window` says it."""


@dataclass
class FirstLayer:
    """What the first layer leaves for the others, if they read anything of it."""

    value: Tensor | None = None


@record()
class StatePart:
    """A tensor that a part of a layer keeps, as of one sequence."""

    shape: tuple[int, ...]
    by_chunk: bool = False
    """It lies in bases, and not in slots."""


@record()
class StateInputs:
    """The inputs of a step that a recurrent layer reads (shapes in `library/signatures.py`)."""

    rows: Tensor
    states: tuple[Tensor, ...]
    """[slots, ...] or [bases, ...], changed in place: of what `KeptStates.kept` says."""
    first: FirstLayer


@record()
class AdapterInputs:
    """The LoRA adapters of one matrix. Token t has the adapter a = slots[t], unless that is -1. To
    the rows of each part of the matrix's result it adds up[a] of these rows times down[a, part]
    x[t]. Their shapes: `library/adapter_format.py`."""

    slots: Tensor
    """int32 [tokens]."""
    down: Tensor
    """Of the backend's `adapter_dtype`; 0 beyond the rank of an adapter, as is `up`."""
    up: Tensor
    ranks: Tensor
    """int32 [adapters]: the largest rank of an adapter's parts; 0: it leaves the matrix alone."""
    widths: tuple[int, ...]
    """Rows of each part."""


@record()
class Mamba2Vectors:
    """What a `Mamba2Spec` has beside its matrices, float32: weights [channels, kernel] and biases
    [channels] of the convolution, biases of dt [heads], `a` and `d` [heads, 1], weights of the norm
    [groups, inner / groups], if there is one."""

    conv: Tensor
    conv_bias: Tensor
    dt_bias: Tensor
    a: Tensor
    d: Tensor
    norm: Tensor | None
    eps: float


@record()
class GatedDeltaVectors:
    """What a `GatedDeltaSpec` has beside its matrices, float32: weights [channels, kernel] of the
    convolution, biases of a [heads], `decay` [heads], weights of the norm [head_dim]."""

    conv: Tensor
    dt_bias: Tensor
    decay: Tensor
    norm: Tensor
    eps: float


@record()
class Rwkv7Parts:
    """What the matrices of an `Rwkv7Spec` give, float32 [tokens, width] each."""

    r: Tensor
    w: Tensor
    k: Tensor
    v: Tensor
    a: Tensor
    g: Tensor
    b: Tensor | None
    first: Tensor | None
    """v of the first layer; None in that layer, which has no b."""


@record()
class Rwkv7Vectors:
    """What an `Rwkv7Spec` has beside its matrices, float32 [width]; the last two are those of the
    norm. v0 is None in the first layer."""

    w0: Tensor
    a0: Tensor
    v0: Tensor | None
    k_k: Tensor
    k_a: Tensor
    r_k: Tensor
    norm: Tensor
    norm_bias: Tensor


@record()
class AttentionBlocks:
    """How attention cuts its work."""

    query: int
    """Tokens of one sequence that a row of `query_blocks` may cover."""
    fast_query: int
    """The same among the `fast_tokens`."""
    kv_split: int
    """Pages of a sequence that are summed up together."""
    apart: int = 1
    """Tokens of a row, at most, that get a query block each: draft tokens, mostly."""
