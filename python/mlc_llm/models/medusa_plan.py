"""Which tensors of a folder make Medusa heads.

The names are those of the authors' training code (FasterDecoding/Medusa, `medusa_lm_head`): head i
has blocks `i.j.linear` and, behind them, its matrix over the vocabulary. MLC LLM writes
`medusa_head.` before them.
"""

from __future__ import annotations

from collections.abc import Mapping

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.heads_spec import MedusaSpec
from mlc_llm.models.sources import Source
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.values import Values
from mlc_llm.models.weight_plan import TensorInfo, WeightPlan, checked_plan

PREFIX = "medusa_head."
MOST_HEADS, MOST_BLOCKS = 16, 8


def block_name(head: int, block: int) -> str:
    return f"block_{head}_{block}"


def bias_name(head: int, block: int) -> str:
    return f"{block_name(head, block)}_bias"


def head_name(head: int) -> str:
    return f"head_{head}"


def plan_medusa(config: Mapping[str, object], tensors: Mapping[str, TensorInfo]) -> WeightPlan:
    """The plan of a folder. config: what its config.json says.

    The sizes of the model that the heads are for are those of the first head. Raises
    ModelFileError, UnsupportedModel.
    """
    values = Values(config, "", null_is_absent=True)
    if not values.has("medusa_num_heads"):
        raise UnsupportedModel("config.json has no medusa_num_heads: these are no Medusa heads")
    heads = values.count("medusa_num_heads", most=MOST_HEADS)
    blocks = values.count("medusa_num_layers", 1, most=MOST_BLOCKS)
    prefix = PREFIX if any(name.startswith(PREFIX) for name in tensors) else ""
    vocab, hidden = _sizes(f"{prefix}0.{blocks}.weight", tensors)
    spec = ModelSpec(
        architecture="medusa",
        hidden=hidden,
        vocab=vocab,
        context_window=1,
        norm_eps=0.0,
        layers=(),
        ropes=(),
        tied_head=False,
        medusa=MedusaSpec(heads, blocks),
    )
    matrices: dict[str, tuple[Source, ...]] = {}
    vectors: dict[str, Source] = {}
    for head in range(heads):
        for block in range(blocks):
            start = f"{prefix}{head}.{block}.linear"
            matrices[block_name(head, block)] = (Source(f"{start}.weight", (hidden, hidden)),)
            vectors[bias_name(head, block)] = Source(f"{start}.bias", (hidden,))
        last = Source(f"{prefix}{head}.{blocks}.weight", (vocab, hidden))
        matrices[head_name(head)] = (last,)
    return checked_plan(spec, matrices, vectors, tensors)


def _sizes(name: str, tensors: Mapping[str, TensorInfo]) -> tuple[int, int]:
    """Rows and columns of a matrix."""
    if name not in tensors:
        raise ModelFileError(f"there is no tensor {name}")
    shape = tuple(tensors[name].shape)
    if len(shape) != 2:
        raise ModelFileError(f"tensor {name} has shape {shape}, expected a matrix")
    return shape[0], shape[1]
