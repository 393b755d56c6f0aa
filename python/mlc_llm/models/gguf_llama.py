"""Reads a Llama's shape out of GGUF metadata, and says which tensors make which parameter.

Source: the GGUF specification (ggml, docs/gguf.md), section "Architectures".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mlc_llm.errors import ModelFileError, UnsupportedModel
from mlc_llm.models.config import ModelConfig, RopeConfig


class TensorInfo(Protocol):
    """What this file needs to know of a tensor."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def kind(self) -> str: ...


@dataclass(frozen=True)
class Source:
    """One tensor of the file, in full or as part of a joined matrix."""

    tensor: str
    rope_heads: int = 0
    """Not 0: rows are grouped in this many heads whose row pairs become halves."""


@dataclass(frozen=True)
class Plan:
    """How the file's tensors become parameters: matrices by prefix, vectors by name."""

    config: ModelConfig
    matrices: dict[str, tuple[Source, ...]]
    vectors: dict[str, str]


def read_llama(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> Plan:
    """Raises UnsupportedModel or ModelFileError naming the key or tensor at fault."""
    config = _config(metadata, tensors)
    matrices = dict(_matrices(config, tensors))
    vectors = dict(_vectors(config))
    _check_all_used(config, tensors, matrices, vectors)
    _check_shapes(config, tensors, vectors)
    return Plan(config, matrices, vectors)


def _config(metadata: Mapping[str, Any], tensors: Mapping[str, TensorInfo]) -> ModelConfig:
    def count(key: str, default: Any = None) -> int:
        value = metadata.get(f"llama.{key}", default)
        if type(value) is not int or not 0 < value < 2**31:
            raise ModelFileError(f"llama.{key} is {value!r}; a whole number above 0 was expected")
        return value

    hidden, heads = count("embedding_length"), count("attention.head_count")
    kv_heads = count("attention.head_count_kv", heads)
    head_dim = count("attention.key_length", hidden // heads)
    layers = count("block_count")
    if layers > len(tensors):
        raise ModelFileError(f"llama.block_count is {layers}; the file has {len(tensors)} tensors")
    embedding = tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError("there is no tensor token_embd.weight")
    config = ModelConfig(
        architecture="llama",
        hidden=hidden,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=count("feed_forward_length"),
        vocab=embedding.shape[0],
        context_window=count("context_length"),
        norm_eps=_positive(metadata, "llama.attention.layer_norm_rms_epsilon"),
        rope=_rope(metadata, head_dim),
        tied_head="output.weight" not in tensors,
        interleaved_rope=True,
    )
    if heads % kv_heads or head_dim % 16 or hidden % 32 or config.intermediate % 32:
        raise UnsupportedModel(
            f"sizes of this model are not supported: {heads} heads over {kv_heads}, "
            f"head size {head_dim}, hidden {hidden}, feed-forward {config.intermediate}"
        )
    return config


def _rope(metadata: Mapping[str, Any], head_dim: int) -> RopeConfig:
    dim = metadata.get("llama.rope.dimension_count", head_dim)
    if dim != head_dim:
        raise UnsupportedModel(f"rotary embedding over {dim} of {head_dim} elements of a head")
    scaling = metadata.get("llama.rope.scaling.type", "none")
    if scaling not in ("none", "linear"):
        raise UnsupportedModel(f"rope scaling type {scaling!r}; supported are none and linear")
    factor = _positive(metadata, "llama.rope.scaling.factor", 1.0)
    theta = _positive(metadata, "llama.rope.freq_base", 10000.0)
    return RopeConfig(theta=theta, dim=head_dim, linear=factor if scaling == "linear" else 1.0)


def _positive(metadata: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = metadata.get(key, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < 1e30:
        raise ModelFileError(f"{key} is {value!r}; a number above 0 was expected")
    return float(value)


def _matrices(config: ModelConfig, tensors: Mapping[str, TensorInfo]) -> Any:
    yield "embedding", (Source("token_embd.weight"),)
    if not config.tied_head:
        yield "head", (Source("output.weight"),)
    for i in range(config.layers):
        block = f"blk.{i}."
        qkv = {
            "q": Source(f"{block}attn_q.weight", config.heads),
            "k": Source(f"{block}attn_k.weight", config.kv_heads),
            "v": Source(f"{block}attn_v.weight"),
        }
        mlp = {n: Source(f"{block}ffn_{n}.weight") for n in ("gate", "up")}
        yield from _fused(f"layers.{i}.qkv.", qkv, tensors)
        yield f"layers.{i}.o", (Source(f"{block}attn_output.weight"),)
        yield from _fused(f"layers.{i}.mlp.", mlp, tensors)
        yield f"layers.{i}.down", (Source(f"{block}ffn_down.weight"),)


def _fused(prefix: str, parts: dict[str, Source], tensors: Mapping[str, TensorInfo]) -> Any:
    """Matrices of one kind are joined; otherwise each keeps its own format."""
    infos = [tensors.get(source.tensor) for source in parts.values()]
    if len({info.kind for info in infos if info}) == 1:
        yield prefix + "_".join(parts), tuple(parts.values())
    else:
        for name, source in parts.items():
            yield prefix + name, (source,)


def _vectors(config: ModelConfig) -> Any:
    yield "norm", "output_norm.weight"
    for i in range(config.layers):
        yield f"layers.{i}.attention_norm", f"blk.{i}.attn_norm.weight"
        yield f"layers.{i}.mlp_norm", f"blk.{i}.ffn_norm.weight"


def _check_all_used(
    config: ModelConfig,
    tensors: Mapping[str, TensorInfo],
    matrices: dict[str, tuple[Source, ...]],
    vectors: dict[str, str],
) -> None:
    """A tensor we would ignore means another model than the one we compute."""
    used = {s.tensor for sources in matrices.values() for s in sources} | set(vectors.values())
    for name in used - set(tensors):
        raise ModelFileError(f"there is no tensor {name}")
    for name in sorted(set(tensors) - used - {"rope_freqs.weight"}):
        raise UnsupportedModel(f"tensor {name} is not part of the Llama architecture known here")


def _check_shapes(
    config: ModelConfig, tensors: Mapping[str, TensorInfo], vectors: dict[str, str]
) -> None:
    query, kv = config.heads * config.head_dim, config.kv_heads * config.head_dim
    hidden, wide = config.hidden, config.intermediate
    expected = {
        "token_embd": (config.vocab, hidden), "output": (config.vocab, hidden),
        "attn_q": (query, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden),
        "attn_output": (hidden, query), "ffn_gate": (wide, hidden), "ffn_up": (wide, hidden),
        "ffn_down": (hidden, wide), "attn_norm": (hidden,), "ffn_norm": (hidden,),
        "output_norm": (hidden,), "rope_freqs": (config.head_dim // 2,),
    }  # fmt: skip
    for name, info in tensors.items():
        want = expected[name.removesuffix(".weight").split(".")[-1]]
        if tuple(info.shape) != want:
            raise ModelFileError(f"tensor {name} has shape {tuple(info.shape)}, expected {want}")
    for name in [*vectors.values(), "rope_freqs.weight"]:
        if name in tensors and tensors[name].kind not in ("F32", "F16", "BF16"):
            raise UnsupportedModel(f"tensor {name} of type {tensors[name].kind}")
