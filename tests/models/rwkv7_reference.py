"""RWKV-7 in float64, token by token, after the formulas of its paper (Peng et al. 2025). It shares
no line with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE, byte_tokenizer_metadata
from mlc_llm.testing.gguf_writer import TensorData, write_gguf

Array = npt.NDArray[np.float64]
RANKS = {"w": 32, "a": 64, "v": 32, "g": 96}
HIDDEN, WIDE, LAYERS = 64, 96, 3


def tensors_of(head_dim: int, seed: int) -> dict[str, npt.NDArray[np.float32]]:
    """Random tensors under GGUF's names."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) / columns**0.5).astype(np.float32)

    def vector(mean: float, spread: float = 0.3) -> npt.NDArray[np.float32]:
        return (mean + spread * rng.standard_normal(HIDDEN)).astype(np.float32)

    found = {"token_embd.weight": matrix(VOCABULARY_SIZE, HIDDEN)}
    found["output.weight"] = matrix(VOCABULARY_SIZE, HIDDEN)
    for name in ("token_embd_norm", "output_norm"):
        found |= {f"{name}.weight": vector(1.0), f"{name}.bias": vector(0.0)}
    for i in range(LAYERS):
        start = f"blk.{i}."
        for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
            found |= {f"{start}{name}.weight": vector(1.0), f"{start}{name}.bias": vector(0.0)}
        for name in ("receptance", "key", "value", "output"):
            found[f"{start}time_mix_{name}.weight"] = matrix(HIDDEN, HIDDEN)
        for letter, rank in RANKS.items():
            found[f"{start}time_mix_{letter}1.weight"] = matrix(rank, HIDDEN)
            found[f"{start}time_mix_{letter}2.weight"] = matrix(HIDDEN, rank)
        for name, mean in {"w0": -1, "a0": 0, "v0": 0.5, "k_k": 0.8, "k_a": 1, "r_k": 0.1}.items():
            found[f"{start}time_mix_{name}.weight"] = vector(mean)
        factors = rng.random((6, 1, 1, HIDDEN)).astype(np.float32)
        found[f"{start}time_mix_lerp_fused.weight"] = factors
        found[f"{start}channel_mix_lerp_k.weight"] = rng.random(HIDDEN).astype(np.float32)
        found[f"{start}channel_mix_key.weight"] = matrix(WIDE, HIDDEN)
        found[f"{start}channel_mix_value.weight"] = matrix(HIDDEN, WIDE)
    return found


def metadata_of(head_dim: int, **changes: Any) -> dict[str, Any]:
    own: dict[str, Any] = {
        "context_length": 2**20, "embedding_length": HIDDEN, "block_count": LAYERS,
        "feed_forward_length": WIDE, "attention.layer_norm_epsilon": 1e-5,
        "wkv.head_size": head_dim, "attention.decay_lora_rank": RANKS["w"],
        "attention.iclr_lora_rank": RANKS["a"], "attention.head_count": 0,
        "attention.value_residual_mix_lora_rank": RANKS["v"],
        "attention.gate_lora_rank": RANKS["g"],
    }  # fmt: skip
    own = {f"rwkv7.{key}": value for key, value in (own | changes).items()}
    general = {"general.architecture": "rwkv7", "general.name": "random"}
    return {**general, **own, **byte_tokenizer_metadata()}


def write_model(path: Path, head_dim: int = 32, seed: int = 0, **changes: Any) -> Path:
    tensors = {
        name: TensorData.quantized(values, "F32")
        for name, values in tensors_of(head_dim, seed).items()
    }
    write_gguf(path, metadata_of(head_dim, **changes), tensors)
    return path


def logits(
    tensors: Mapping[str, npt.NDArray[np.floating[Any]]],
    tokens: list[int],
    head_dim: int,
    eps: float = 1e-5,
    head_eps: float = 64e-5,
) -> Array:
    """The logits behind each token."""
    w = {name: np.asarray(one, np.float64) for name, one in tensors.items()}
    layers = 1 + max(int(name.split(".")[1]) for name in w if name.startswith("blk."))
    stream = [_norm(w, "token_embd_norm", row, eps) for row in w["token_embd.weight"][tokens]]
    first: list[Array] = []
    for i in range(layers):
        of = {n.removeprefix(f"blk.{i}."): one for n, one in w.items() if n.startswith(f"blk.{i}.")}
        stream = _layer(of, stream, first, head_dim=head_dim, eps=eps, head_eps=head_eps)
    behind = [w["output.weight"] @ _norm(w, "output_norm", x, eps) for x in stream]
    return np.array(behind)


def _layer(
    w: Mapping[str, Array],
    stream: list[Array],
    first: list[Array],
    *,
    head_dim: int,
    eps: float,
    head_eps: float,
) -> list[Array]:
    heads = len(stream[0]) // head_dim
    state = np.zeros((heads, head_dim, head_dim))  # by value, then by key
    before = np.zeros_like(stream[0])
    is_first, behind = not first, []
    for t, x in enumerate(stream):
        y = _norm(w, "attn_norm", x, eps)
        mixed = [y + (before - y) * one for one in w["time_mix_lerp_fused.weight"].reshape(6, -1)]
        before = y
        gives = _time_mix(w, mixed, first, t, state, is_first=is_first, head_eps=head_eps)
        behind.append(x + w["time_mix_output.weight"] @ gives)
    before = np.zeros_like(stream[0])
    for t, x in enumerate(behind):
        y = _norm(w, "attn_norm_2", x, eps)
        mixed_y = y + (before - y) * w["channel_mix_lerp_k.weight"]
        before = y
        inner = np.maximum(w["channel_mix_key.weight"] @ mixed_y, 0) ** 2
        behind[t] = x + w["channel_mix_value.weight"] @ inner
    return behind


def _time_mix(
    w: Mapping[str, Array],
    mixed: list[Array],
    first: list[Array],
    t: int,
    state: Array,
    *,
    is_first: bool,
    head_eps: float,
) -> Array:
    def pair(letter: str, x: Array, between: Any = lambda one: one) -> Array:
        inner = between(w[f"time_mix_{letter}1.weight"] @ x)
        return w[f"time_mix_{letter}2.weight"] @ inner

    def bias(letter: str) -> Array:
        return w[f"time_mix_{letter}0.weight"]

    of_r, of_w, of_k, of_v, of_a, of_g = mixed
    r = w["time_mix_receptance.weight"] @ of_r
    decay = np.exp(-np.exp(-0.5) * _sigmoid(bias("w") + pair("w", of_w, np.tanh)))
    k = w["time_mix_key.weight"] @ of_k
    v = w["time_mix_value.weight"] @ of_v
    if is_first:
        first.append(v)
    else:
        v = v + (first[t] - v) * _sigmoid(bias("v") + pair("v", of_v))
    rate, gate = _sigmoid(bias("a") + pair("a", of_a)), pair("g", of_g, _sigmoid)
    removed = k * w["time_mix_k_k.weight"]
    k = k * (1 + (rate - 1) * w["time_mix_k_a.weight"])
    own = r * k * w["time_mix_r_k.weight"].reshape(-1)
    out, size = np.empty_like(r), state.shape[1]
    for h in range(len(state)):
        at = slice(h * size, (h + 1) * size)
        unit = removed[at] / max(float(np.linalg.norm(removed[at])), 1e-12)
        moved = state[h] @ (np.diag(decay[at]) - np.outer(unit, rate[at] * unit))
        state[h] = moved + np.outer(v[at], k[at])
        o = state[h] @ r[at]
        out[at] = (o - o.mean()) / np.sqrt(o.var() + head_eps)
        out[at] = out[at] * w["time_mix_ln.weight"][at] + w["time_mix_ln.bias"][at]
        out[at] += own[at].sum() * v[at]
    return out * gate


def _norm(w: Mapping[str, Array], name: str, x: Array, eps: float) -> Array:
    normed = (x - x.mean()) / np.sqrt(x.var() + eps)
    return normed * w[f"{name}.weight"] + w[f"{name}.bias"]


def _sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))
