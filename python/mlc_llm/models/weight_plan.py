"""Which tensors of a model make which parameter of a model.

GGUF names tensors alike in all architectures (ggml, docs/gguf.md, "Standardized tensor names"), so
the plan follows from the spec: a parameter that the spec asks for must be there in the right shape,
and a tensor that nothing asks for means another model than the one we would compute.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.attention_spec import AttentionSpec
from mlc_llm.models.encoder_spec import EncoderSpec
from mlc_llm.models.image_spec import TowerSpec
from mlc_llm.models.network_spec import DenseSpec, ExpertsSpec
from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec
from mlc_llm.models.sources import HeadPart, PairedRows, Source
from mlc_llm.models.spec import AdaptedMatrix, Mixer, ModelSpec
from mlc_llm.models.spec_checks import check_sizes
from mlc_llm.models.vectors import LAST_NORM, layer_vectors, model_vectors
from mlc_llm.record import record

SAME_NAMES: Mapping[str, str] = MappingProxyType({})
FLOAT_KINDS = ("F32", "F16", "BF16")
"""Tensor types that vectors may have."""
PROJECTIONS = ("dense_2", "dense_3")
"""Of the vectors of texts: the numbers of these modules in the first folders that had them."""


class TensorInfo(Protocol):
    """What a plan needs to know of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> str: ...


Tensors = Mapping[str, TensorInfo]


@record()
class WeightPlan:
    """How the file's tensors become parameters: matrices by prefix, vectors by name."""

    spec: ModelSpec
    matrices: dict[str, tuple[Source, ...]]
    vectors: dict[str, Source]

    def with_adapters(self) -> WeightPlan:
        """The plan of a model to whose layers LoRA adapters may add."""
        adapted = tuple(
            AdaptedMatrix(name, sources[0].shape[1], tuple(source.count for source in sources))
            for name, sources in self.matrices.items()
            if name.startswith("layers.") and len(sources[0].shape) == 2
        )
        return replace(self, spec=replace(self.spec, adapted=adapted))


def plan_weights(
    spec: ModelSpec,
    tensors: Tensors,
    *,
    interleaved_rope: bool = False,
    last_norm: str = LAST_NORM,
    names: Mapping[str, str] = SAME_NAMES,
) -> WeightPlan:
    """The plan, with the tensor types filled into its spec.

    interleaved_rope: the file pairs neighbouring rows of a query or key head; they are reordered.
    last_norm: the tensor of the norm before the head. names: how this architecture's files name
    vectors of a layer otherwise, such as {"ffn_norm.weight": "post_attention_norm.weight"}.
    Raises UnsupportedModel or ModelFileError naming the tensor at fault.
    """
    check_sizes(spec)
    matrices = dict(_matrices(spec, tensors, interleaved_rope))
    norm = {} if spec.encoder else {"norm": Source(last_norm, (spec.hidden,))}
    vectors = dict(_vectors(spec, tensors, interleaved_rope, names)) | norm
    ropes = {
        factors: (rope.dim // 2,)
        for rope in spec.ropes
        for factors in (rope.factors, rope.long_factors)
        if isinstance(factors, str)
    }
    return checked_plan(spec, matrices, vectors, tensors, ropes)


def checked_plan(
    spec: ModelSpec,
    matrices: dict[str, tuple[Source, ...]],
    vectors: dict[str, Source],
    tensors: Tensors,
    more: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
) -> WeightPlan:
    """The plan of these parameters, with the tensor types filled into its spec. more: shapes of
    vectors that are no parameters. Raises UnsupportedModel or ModelFileError naming the tensor at
    fault: one that is missing, in the way, of another shape or type."""
    wanted = {s.tensor: s.shape for sources in matrices.values() for s in sources}
    wanted |= {s.tensor: s.shape for s in vectors.values()} | dict(more)
    _check_all_used(wanted, tensors)
    for name in [*(s.tensor for s in vectors.values()), *more]:
        if tensors[name].kind not in FLOAT_KINDS:
            raise UnsupportedModel(f"tensor {name} of type {tensors[name].kind}")
    kinds = {prefix: tensors[sources[0].tensor].kind for prefix, sources in matrices.items()}
    return WeightPlan(replace(spec, kinds=kinds), matrices, vectors)


def wanted_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors that a plan takes, by name, where each matrix is a tensor."""
    matrices = [source for _, sources in _matrices(spec, {}, False) for source in sources]
    found = {source.tensor: source.shape for source in matrices}
    return found | {source.tensor: source.shape for _, source in _vectors(spec, {}, False)}


def _matrices(
    spec: ModelSpec, tensors: Tensors, interleaved: bool
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    if spec.tower is not None:
        yield from _tower_matrices(spec.hidden, spec.tower)
    else:
        table = (spec.vocab, spec.hidden)
        yield "embedding", (Source("token_embd.weight", table),)
        if not spec.tied_head:
            yield "head", (Source("output.weight", table),)
    if spec.encoder is not None:
        yield from _encoder_matrices(spec.hidden, spec.encoder)
    yield from _token_matrices(spec)
    for i in range(len(spec.layers)):
        yield from _layer_matrices(spec, i, tensors, interleaved)


def _tower_matrices(hidden: int, tower: TowerSpec) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """Before and behind the layers."""
    yield "patch", (Source("patch_embd.weight", (hidden, tower.patch_numbers)),)
    yield "project", (Source("project.weight", (tower.width, tower.joined(hidden))),)


def _encoder_matrices(
    hidden: int, encoder: EncoderSpec
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """Behind the layers."""
    if encoder.labels:
        yield "pair_dense", (Source("cls.weight", (hidden, hidden)),)
    columns = hidden
    for name, rows in zip(PROJECTIONS, encoder.projections, strict=False):
        yield name, (Source(f"{name}.weight", (rows, columns)),)
        columns = rows


def with_projections(spec: ModelSpec, tensors: Tensors) -> ModelSpec:
    """An encoder with as many projections as there are tensors of them. Raises ModelFileError."""
    assert spec.encoder is not None
    rows: list[int] = []
    for i, name in enumerate(f"{one}.weight" for one in PROJECTIONS):
        if name in tensors and len(rows) == i:
            if len(tensors[name].shape) != 2:
                raise ModelFileError(f"tensor {name} has shape {tensors[name].shape}")
            rows.append(tensors[name].shape[0])
    return replace(spec, encoder=replace(spec.encoder, projections=tuple(rows)))


def _token_matrices(spec: ModelSpec) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """Of inputs of layers by token."""
    width, hidden = spec.token_inputs, spec.hidden
    if width:
        yield "token_table", (Source("per_layer_token_embd.weight", (spec.vocab, width)),)
        yield "token_context", (Source("per_layer_model_proj.weight", (width, hidden)),)
    for i, layer in enumerate(spec.layers):
        if layer.token_input:
            gate, out = (layer.token_input, hidden), (hidden, layer.token_input)
            yield f"layers.{i}.token_gate", (Source(f"blk.{i}.inp_gate.weight", gate),)
            yield f"layers.{i}.token_out", (Source(f"blk.{i}.proj.weight", out),)


def _layer_matrices(
    spec: ModelSpec, i: int, tensors: Tensors, interleaved: bool
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    mlp, hidden = spec.layers[i].feed_forward, spec.hidden
    for mixer in spec.layers[i].mixers:
        if isinstance(mixer, ShortConvSpec):
            yield from _conv_matrices(hidden, mixer, i)
        elif isinstance(mixer, Mamba2Spec):
            yield f"layers.{i}.ssm_in", (Source(f"blk.{i}.ssm_in.weight", (mixer.rows, hidden)),)
            yield f"layers.{i}.ssm_out", (Source(f"blk.{i}.ssm_out.weight", (hidden, mixer.inner)),)
        elif isinstance(mixer, GatedDeltaSpec):
            yield from _delta_matrices(hidden, mixer, i, tensors)
        elif isinstance(mixer, Rwkv7Spec):
            yield from _rwkv7_matrices(mixer, i)
        else:
            yield from _attention_matrices(spec, mixer, i, tensors, interleaved)
    if not spec.layers[i].has_network:
        return
    if isinstance(mlp, ExpertsSpec):
        yield from _expert_matrices(hidden, mlp, i, tensors)
    elif mlp.shifted:
        up, down = (mlp.intermediate, hidden), (hidden, mlp.intermediate)
        yield f"layers.{i}.channel_up", (Source(f"blk.{i}.channel_mix_key.weight", up),)
        yield f"layers.{i}.channel_down", (Source(f"blk.{i}.channel_mix_value.weight", down),)
    else:
        yield from _dense_matrices(hidden, mlp, i, tensors)


def _conv_matrices(
    hidden: int, one: ShortConvSpec, i: int
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    start = f"blk.{i}.shortconv"
    yield f"layers.{i}.conv_in", (Source(f"{start}.in_proj.weight", (3 * one.width, hidden)),)
    yield f"layers.{i}.conv_out", (Source(f"{start}.out_proj.weight", (hidden, one.width)),)


def _delta_matrices(
    hidden: int, one: GatedDeltaSpec, i: int, tensors: Tensors
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    names = {"qkv": "attn_qkv", "z": "attn_gate", "a": "ssm_alpha", "b": "ssm_beta"}
    parts = {
        part: Source(f"blk.{i}.{names[part]}.weight", (rows, hidden))
        for part, rows in one.parts.items()
    }
    fused = f"blk.{i}.ssm_ba.weight"
    if fused in tensors:  # b, then a, of each head of keys
        both = Source(fused, (2 * one.heads, hidden))
        parts["a"] = replace(both, part=HeadPart(one.key_heads, 1, 2))
        parts["b"] = replace(both, part=HeadPart(one.key_heads, 0, 2))
    yield from _merged(f"layers.{i}.delta_in.", parts, tensors)
    yield f"layers.{i}.delta_out", (Source(f"blk.{i}.ssm_out.weight", (hidden, one.inner)),)


def _rwkv7_matrices(one: Rwkv7Spec, i: int) -> Iterator[tuple[str, tuple[Source, ...]]]:
    wide = one.width
    names = {"r": "receptance", "k": "key", "v": "value", "out": "output"}
    sizes = {name: (tensor, (wide, wide)) for name, tensor in names.items()}
    for letter, rank in one.ranks.items():
        sizes[f"{letter}1"] = f"{letter}1", (rank, wide)
        sizes[f"{letter}2"] = f"{letter}2", (wide, rank)
    for name, (tensor, size) in sizes.items():
        yield f"layers.{i}.mix_{name}", (Source(f"blk.{i}.time_mix_{tensor}.weight", size),)


def _attention_matrices(
    spec: ModelSpec, one: AttentionSpec, i: int, tensors: Tensors, interleaved: bool
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    def source(name: str, rows: int, columns: int, heads: int = 0) -> Source:
        paired = _paired(spec, one, heads) if interleaved else None
        return Source(f"blk.{i}.{name}.weight", (rows, columns), paired)

    assert not (interleaved and one.values_are_keys), "values keep the order of their rows"
    assert not (interleaved and one.gated), "gates stand between the queries"
    hidden, q, kv = spec.hidden, one.query_width, one.kv_width
    if f"blk.{i}.attn_qkv.weight" in tensors:
        fused = source("attn_qkv", q + 2 * kv, hidden, one.heads + one.kv_heads)
        yield f"layers.{i}.qkv.q_k_v", (fused,)
    else:
        qkv = {
            "q": source("attn_q", q, hidden, one.heads),
            "k": source("attn_k", kv, hidden, one.kv_heads),
            "v": source("attn_v", kv, hidden),
        }
        if one.gated:  # behind the queries of each head
            both = replace(qkv["q"], shape=(2 * q, hidden))
            qkv["q"] = replace(both, part=HeadPart(one.heads, 0, 2))
            qkv["gate"] = replace(both, part=HeadPart(one.heads, 1, 2))
        yield from _merged(f"layers.{i}.qkv.", {part: qkv[part] for part in one.parts}, tensors)
    yield f"layers.{i}.o", (source("attn_output", hidden, q),)


def _paired(spec: ModelSpec, one: Mixer, heads: int) -> PairedRows | None:
    """The rows of so many heads of a layer, as a file pairs them."""
    if not heads or not isinstance(one, AttentionSpec) or one.rope is None:
        return None
    return PairedRows(heads, one.head_dim, spec.ropes[one.rope].dim)


def _dense_matrices(
    hidden: int, spec: DenseSpec, i: int, tensors: Tensors, name: str = "mlp", suffix: str = ""
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """suffix: behind the names of the tensors."""
    down, wide = "down" if name == "mlp" else f"{name}_down", spec.intermediate
    parts = {
        part: Source(f"blk.{i}.ffn_{part}{suffix}.weight", (wide, hidden))
        for part in (("gate", "up") if spec.gated else ("up",))
    }
    up = tensors.get(parts["up"].tensor)
    has_gate = "gate" not in parts or parts["gate"].tensor in tensors
    if not has_gate and up is not None and tuple(up.shape) == (2 * wide, hidden):
        yield f"layers.{i}.{name}.gate_up", (Source(parts["up"].tensor, (2 * wide, hidden)),)
    else:
        yield from _merged(f"layers.{i}.{name}.", parts, tensors)
    yield f"layers.{i}.{down}", (Source(f"blk.{i}.ffn_down{suffix}.weight", (hidden, wide)),)


def _expert_matrices(
    hidden: int, spec: ExpertsSpec, i: int, tensors: Tensors
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    count, wide = spec.num_experts, spec.intermediate
    yield f"layers.{i}.router", (Source(f"blk.{i}.ffn_gate_inp.weight", (count, hidden)),)
    for name, size in {
        "gate": (wide, hidden),
        "up": (wide, hidden),
        "down": (hidden, wide),
    }.items():
        source = Source(f"blk.{i}.ffn_{name}_exps.weight", (count, *size))
        yield f"layers.{i}.experts.{name}", (source,)
    if spec.shared is not None:
        yield from _dense_matrices(hidden, spec.shared, i, tensors, "shared", "_shexp")


def _merged(
    prefix: str, parts: dict[str, Source], tensors: Tensors
) -> Iterator[tuple[str, tuple[Source, ...]]]:
    """Matrices of one kind are joined; otherwise each keeps its own."""
    infos = [tensors.get(source.tensor) for source in parts.values()]
    if len({info.kind for info in infos if info}) == 1:
        yield prefix + "_".join(parts), tuple(parts.values())
    else:
        for name, source in parts.items():
            yield prefix + name, (source,)


def _vectors(
    spec: ModelSpec, tensors: Tensors, interleaved: bool, names: Mapping[str, str] = SAME_NAMES
) -> Iterator[tuple[str, Source]]:
    for name, one in model_vectors(spec).items():
        yield name, Source(one.tensor, one.shape)
    for i, layer in enumerate(spec.layers):
        for name, one in layer_vectors(spec, layer).items():
            paired = _paired(spec, layer.mixer, one.rope_heads) if interleaved else None
            tensor = names.get(one.tensor, one.tensor)
            source = Source(f"blk.{i}.{tensor}", one.shape, paired)
            yield f"layers.{i}.{name}", _in_fused(source, layer.mixer, i, tensors)


def _in_fused(source: Source, mixer: Mixer, i: int, tensors: Tensors) -> Source:
    """The same vector as rows of one that the file has for queries, keys and values together."""
    whole = f"blk.{i}.attn_qkv.bias"
    if whole not in tensors or not isinstance(mixer, AttentionSpec):
        return source
    q, kv = mixer.query_width, mixer.kv_width
    firsts = {"q": 0, "k": q, "v": q + kv}
    for part, first in firsts.items():
        if source.tensor == f"blk.{i}.attn_{part}.bias":
            shape, rows = (q + 2 * kv,), source.shape[0]
            return replace(source, tensor=whole, shape=shape, first=first, rows=rows)
    return source


def _check_all_used(wanted: dict[str, tuple[int, ...]], tensors: Tensors) -> None:
    for name in sorted(set(wanted) - set(tensors)):
        raise ModelFileError(f"there is no tensor {name}")
    for name in sorted(set(tensors) - set(wanted)):
        raise UnsupportedModel(f"tensor {name} is not part of the architecture as it is known here")
    for name, want in wanted.items():
        shape = tuple(tensors[name].shape)
        if _without_ones(shape) != _without_ones(want):  # some converters write (1, 1, n) for (n,)
            raise ModelFileError(f"tensor {name} has shape {shape}, expected {want}")


def _without_ones(shape: tuple[int, ...]) -> list[int]:
    """The shape without axes of size 1, but for the last axis."""
    return [size for size in shape[:-1] if size != 1] + list(shape[-1:])
