"""The share of a rank: its heads, its rows of feed-forward networks, and what of a file they are.

Ranks that compute a model together (tensor parallel, Shoeybi et al. 2019, Megatron-LM) each have
all layers, but of queries, keys, values, gate and up some rows, and of the output matrix and down
the columns that these give numbers for. So what a rank gives of each half of a layer is one part of
a sum. The ranks add their parts, and everything else is the same in all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from mlc_llm.errors import InvalidField
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.network_spec import DenseSpec
from mlc_llm.models.sources import Slice, Source
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan

FIELD = "tensor_parallel_shards"
LEAST_COLUMNS = 32
"""A rank has a multiple of this many columns, whatever the tensor type: kernels need it."""
BlockOf = Callable[[str], int]
"""Columns that a tensor type keeps together."""


class Share(NamedTuple):
    """One rank of several."""

    rank: int
    """From 0."""
    shards: int

    def of(self, count: int) -> Slice:
        """Its part of so many equal pieces. Later ranks have one more where it does not divide:
        rank 0 has the head of the model to compute as well."""
        return Slice(self.rank * count // self.shards, (self.rank + 1) * count // self.shards)


class _Layer(NamedTuple):
    """What a rank has of a layer."""

    kv_heads: Slice
    rows: Slice
    """Of gate and up."""


def shared_plan(plan: WeightPlan, share: Share, block_of: BlockOf) -> WeightPlan:
    """The plan of a rank. Raises InvalidField for a model that cannot be split so."""
    _refuse_parts(plan.spec, share)
    layers = _layers(plan.spec, share, block_of)
    spec = _shared_spec(plan.spec, share, layers)
    if [group.layers for group in spec.kv_groups] != [one.layers for one in plan.spec.kv_groups]:
        raise _refused(share, "layers with different heads would get the same ones; leave it out")
    matrices = {
        name: tuple(_matrix(plan.spec, layers, name, sources))
        for name, sources in plan.matrices.items()
    }
    vectors = {
        name: _vector(plan.spec, layers, name, source) for name, source in plan.vectors.items()
    }
    return WeightPlan(spec, matrices, vectors)


def _refused(share: Share, allowed: str) -> InvalidField:
    return InvalidField(FIELD, share.shards, allowed)


def _refuse_parts(spec: ModelSpec, share: Share) -> None:
    """Raises InvalidField for parts that no rank can have a share of."""
    if spec.encoder is not None or spec.medusa is not None:
        raise _refused(share, "encoders and draft heads are computed by one process; leave it out")
    if spec.token_inputs:
        raise _refused(share, "this model has inputs by token in its layers; leave it out")
    for i, layer in enumerate(spec.layers):
        one = layer.mixer
        if not isinstance(one, AttentionSpec) or layer.beside is not None:
            raise _refused(share, f"layer {i} is recurrent and cannot be split; leave it out")
        if layer.has_network and not isinstance(layer.feed_forward, DenseSpec):
            raise _refused(share, f"layer {i} has experts, which cannot be split; leave it out")
        if one.qk_norm == "all":
            words = f"layer {i} normalises all heads of a token together; leave it out"
            raise _refused(share, words)


def _layers(spec: ModelSpec, share: Share, block_of: BlockOf) -> list[_Layer]:
    """What the rank has of each layer. Layers of a KV group share a page table, so all of them have
    the same heads."""
    groups = spec.group_of_layer()
    units: dict[int, int] = {}
    for i, one in spec.attention_layers.items():
        columns = one.query_width // one.kv_heads
        unit = math.lcm(columns, _columns(spec, f"layers.{i}.o", block_of)) // columns
        units[groups[i]] = math.lcm(units.get(groups[i], 1), unit)
    found = []
    for i, one in spec.attention_layers.items():
        unit = units[groups[i]]
        heads = _part(share, one.kv_heads, unit, f"layer {i} has {one.kv_heads} heads of keys")
        wide, rows = spec.layers[i].feed_forward.width, Slice(0, 0)
        if wide:
            block = _columns(spec, f"layers.{i}.down", block_of)
            rows = _part(share, wide, block, f"layer {i} has {wide} rows in its feed-forward part")
        found.append(_Layer(heads, rows))
    return found


def _columns(spec: ModelSpec, matrix: str, block_of: BlockOf) -> int:
    """Columns of a matrix that a rank has as a whole or not at all."""
    return math.lcm(block_of(spec.kinds[matrix]), LEAST_COLUMNS)


def _part(share: Share, count: int, unit: int, words: str) -> Slice:
    """Whole units of something. Raises InvalidField if not every rank gets one."""
    pieces = count // unit
    if count % unit or pieces < share.shards:
        together = f", {unit} at a time" if unit > 1 else ""
        most = 1 if count % unit else pieces
        raise _refused(share, f"{words}{together}; at most {most}")
    return share.of(pieces).times(unit)


def _shared_spec(spec: ModelSpec, share: Share, layers: list[_Layer]) -> ModelSpec:
    changed = []
    for layer, own in zip(spec.layers, layers, strict=True):
        one, network = layer.mixer, layer.feed_forward
        assert isinstance(one, AttentionSpec) and isinstance(network, DenseSpec)
        kv_heads = own.kv_heads.size
        one = replace(one, heads=one.heads // one.kv_heads * kv_heads, kv_heads=kv_heads)
        network = replace(network, intermediate=own.rows.size)
        changed.append(replace(layer, mixer=one, feed_forward=network))
    return replace(spec, layers=tuple(changed), shards=share.shards)


def _matrix(
    spec: ModelSpec, layers: list[_Layer], name: str, sources: tuple[Source, ...]
) -> Iterator[Source]:
    """What a rank has of a matrix."""
    start, _, rest = name.partition(".")
    if start != "layers":
        yield from sources
        return
    number, _, inner = rest.partition(".")
    one, own = spec.attention_layers[int(number)], layers[int(number)]
    heads = _heads(one, own)
    owner, _, joined = inner.partition(".")
    if owner in ("o", "down"):
        columns = heads["q"] if owner == "o" else own.rows
        yield from (replace(source, columns=columns) for source in sources)
        return
    if owner == "qkv":
        parts = {part: (heads[part], one.width_of(part)) for part in joined.split("_")}
    else:
        assert owner == "mlp", name
        wide = spec.layers[int(number)].feed_forward.width
        parts = dict.fromkeys(joined.split("_"), (own.rows, wide))
    if len(sources) == len(parts):
        pairs = zip(sources, parts.values(), strict=True)
        yield from (replace(source, kept=kept) for source, (kept, _) in pairs)
        return
    (whole,), first = sources, 0  # the file has all parts in one tensor
    for kept, rows in parts.values():
        yield replace(whole, kept=Slice(first + kept.start, first + kept.stop))
        first += rows


def _heads(one: AttentionSpec, own: _Layer) -> dict[str, Slice]:
    """Rows of the parts of attention."""
    keys = own.kv_heads.times(one.head_dim)
    queries = own.kv_heads.times(one.query_width // one.kv_heads)
    return {"q": queries, "gate": queries, "k": keys, "v": keys}


def _vector(spec: ModelSpec, layers: list[_Layer], name: str, source: Source) -> Source:
    """What a rank has of a vector."""
    start, _, rest = name.partition(".")
    if start != "layers":
        return source
    number, _, inner = rest.partition(".")
    one, own = spec.attention_layers[int(number)], layers[int(number)]
    heads = _heads(one, own)
    kept = {
        "q_bias": heads["q"],
        "k_bias": heads["k"],
        "v_bias": heads["v"],
        "gate_bias": own.rows,
        "up_bias": own.rows,
        "learned_sinks": own.kv_heads.times(one.heads // one.kv_heads),
    }.get(inner)
    return source if kept is None else replace(source, kept=kept)
