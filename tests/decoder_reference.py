"""A decoder in NumPy float64, straight from a GGUF file read by the gguf package.

It is written from the papers and shares no line with the package. `Facts` says in which points an
architecture differs from a Llama. Rotary pairs of a Llama are neighbouring rows (2i, 2i+1) here, as
the file has them; ours pairs halves after reordering rows, so a wrong order cannot cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Window = tuple[int, int]
"""How many tokens one sees, itself included, and how many first ones; these from no farther than if
the window began where the 128 places end that they are in."""


def silu(x: Array) -> Array:
    return np.asarray(x / (1 + np.exp(-x)))


def gelu_tanh(x: Array) -> Array:
    return np.asarray(0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))))


@dataclass(frozen=True)
class Facts:
    """How an architecture differs from a Llama."""

    architecture: str = "llama"
    interleaved: bool = True
    activation: Callable[[Array], Array] = silu
    is_clamped: bool = False
    """The activation is gpt-oss's, a function of gate and up."""
    theta_of_layer: Callable[[int], float] | None = None
    """None: the file's `rope.freq_base`."""
    window_of_layer: Callable[[int], Window | None] = lambda layer: None
    embedding_scale: float = 1.0
    rotates_layer: Callable[[int], bool] = lambda layer: True
    query_factor: Callable[[npt.NDArray[np.int64]], Array] = lambda position: np.ones(len(position))
    score_cap: float | None = None
    residual_scale: float = 1.0
    logit_scale: float = 1.0
    logit_cap: float | None = None
    experts_per_token: int = 0
    softmax_of_chosen: bool = False
    """The router's softmax is over the chosen experts only."""
    renormalize: bool = False
    sigmoid_scale: float = 0.0
    """Weights of experts are sigmoids times this; 0: they are of a softmax."""
    last_norm: str = "output_norm"
    parallel: bool = False
    """Both halves of a layer read the same x."""
    value_norm: bool = False
    """Values are normalised head by head, without weights."""
    keys_of_layer: Callable[[int], int] = lambda layer: layer
    """Whose keys and values a layer reads."""
    magnitude: float = 1.0
    """Rotated elements are multiplied by this."""


def capped(x: Array, cap: float | None) -> Array:
    return x if cap is None else np.asarray(cap * np.tanh(x / cap))


def softmax(x: Array) -> Array:
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


class ReferenceDecoder:
    """All logits of a sequence at once, float64 [tokens, vocab].

    Norms, biases, gates, learned positions, learned sinks and experts are there if the file has
    their weights. A norm with a bias is a layer norm.
    """

    def __init__(self, path: Path, facts: Facts = Facts(), window: Window | None = None) -> None:
        """window: of all layers, in place of the architecture's own."""
        self.facts, self.window = facts, window
        reader = gguf.GGUFReader(path)
        self.fields = {key: field.contents() for key, field in reader.fields.items()}
        self.tensors = {t.name: _float64(t) for t in reader.tensors}
        self.heads = self._number("attention.head_count")
        kv_heads = self._field("attention.head_count_kv")
        self.kv_heads = max(kv_heads) if isinstance(kv_heads, list) else int(kv_heads)
        self.head_dim = self._number("attention.key_length")
        self._keys_values: dict[int, tuple[Array, Array]] = {}
        self.behind: list[Array] = []
        """What the tokens of the last `hidden` were behind so many layers."""

    def logits(self, token_ids: Sequence[int]) -> Array:
        head = "output" if "output.weight" in self.tensors else "token_embd"
        logits = self.hidden(token_ids) @ self._weight(head).T
        return capped(logits * self.facts.logit_scale, self.facts.logit_cap)

    def hidden(self, token_ids: Sequence[int]) -> Array:
        """What the head multiplies, [tokens, hidden]."""
        x = self._weight("token_embd")[list(token_ids)] * self.facts.embedding_scale
        if "position_embd.weight" in self.tensors:
            x = x + self._weight("position_embd")[: len(x)]
        by_token = self._token_inputs(token_ids, x)
        self.behind = [x]
        for layer in range(self._number("block_count")):
            block = f"blk.{layer}."
            scale = self.facts.residual_scale
            is_conv = f"{block}shortconv.conv.weight" in self.tensors
            y = self._short_conv(block, x) if is_conv else self._attention(block, layer, x)
            y = scale * self._post(block + "post_attention_norm", y)
            read = x if self.facts.parallel else x + y
            z = self._post(block + "post_ffw_norm", self._feed_forward(block, read))
            x = x + y + scale * z
            if len(by_token):
                gate = gelu_tanh(self._linear(block + "inp_gate", x))
                z = self._linear(block + "proj", gate * by_token[:, layer])
                x = x + self._norm(block + "post_norm", z)
            x = x * self.tensors.get(f"{block}layer_output_scale.weight", 1)
            self.behind.append(x)
        return self._norm(self.facts.last_norm, x)

    def _token_inputs(self, token_ids: Sequence[int], x: Array) -> Array:
        """[tokens, layers, width], or nothing."""
        if "per_layer_token_embd.weight" not in self.tensors:
            return np.empty(0)
        width = self._weight("per_layer_proj_norm").size
        context = self._linear("per_layer_model_proj", x) / np.sqrt(x.shape[1])
        context = self._norm("per_layer_proj_norm", context.reshape(len(x), -1, width))
        embedded = self._weight("per_layer_token_embd")[list(token_ids)] * np.sqrt(width)
        return np.asarray((embedded.reshape(context.shape) + context) / np.sqrt(2))

    def _attention(self, block: str, layer: int, x: Array) -> Array:
        normed = self._post(block + "attn_norm", x)
        parts = [self._heads(one) for one in self._qkv(block, normed)]
        q = self._head_norm(block + "attn_q_norm", parts[0])
        share = self.heads // self.kv_heads
        theta = self._theta(layer) if self.facts.rotates_layer(layer) else None
        if len(parts) > 1:
            k = self._rotated(self._head_norm(block + "attn_k_norm", parts[1]), theta)
            self._keys_values[layer] = k, self._normed_values(parts[-1])
        k, v = self._keys_values[self.facts.keys_of_layer(layer)]
        k = np.repeat(k, share, 1)
        q = self.facts.query_factor(np.arange(len(x)))[:, None, None] * q
        scores = np.einsum("qhd,khd->hqk", self._rotated(q, theta), k) / np.sqrt(self.head_dim)
        if self.window is not None:
            size, sinks = self.window
            nearer = self._rotated(q, theta, farthest=size - 1 + 128 * math.ceil(sinks / 128))
            of_sinks = np.einsum("qhd,khd->hqk", nearer, k[:sinks]) / np.sqrt(self.head_dim)
            scores[:, :, :sinks] = of_sinks
        scores = capped(scores, self.facts.score_cap)
        scores[:, ~self._seen(layer, len(x))] = -np.inf
        if f"{block}attn_sinks.weight" in self.tensors:
            sink = np.broadcast_to(self._weight(block + "attn_sinks")[:, None, None], scores.shape)
            weights = softmax(np.concatenate([scores, sink[:, :, :1]], axis=2))[:, :, :-1]
        else:
            weights = softmax(scores)
        out = np.einsum("hqk,khd->qhd", weights, np.repeat(v, share, 1)).reshape(len(x), -1)
        return self._linear(block + "attn_output", out)

    def _normed_values(self, v: Array) -> Array:
        if not self.facts.value_norm:
            return v
        eps = float(self._field("attention.layer_norm_rms_epsilon"))
        return np.asarray(v / np.sqrt((v**2).mean(axis=-1, keepdims=True) + eps))

    def _qkv(self, block: str, x: Array) -> Sequence[Array]:
        if f"{block}attn_qkv.weight" not in self.tensors:
            names = [n for n in "qkv" if f"{block}attn_{n}.weight" in self.tensors]
            qkv = np.concatenate([self._linear(f"{block}attn_{n}", x) for n in names], axis=1)
            qkv += self.tensors.get(f"{block}attn_qkv.bias", 0)
        else:
            qkv = self._linear(f"{block}attn_qkv", x)
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return np.split(qkv, [one for one in (q, q + kv) if one < qkv.shape[1]], axis=1)

    def _short_conv(self, block: str, x: Array) -> Array:
        """The whole sequence at once, so there is no state."""
        normed = self._norm(block + "attn_norm", x)
        b, c, u = np.split(self._linear(block + "shortconv.in_proj", normed), 3, axis=1)
        weight, product = self._weight(block + "shortconv.conv"), b * u
        mixed = np.zeros_like(product)
        for back in range(weight.shape[1]):
            mixed[back:] += product[: len(x) - back] * weight[:, -1 - back]
        return self._linear(block + "shortconv.out_proj", c * mixed)

    def _seen(self, layer: int, length: int) -> npt.NDArray[np.bool_]:
        query, key = np.ogrid[:length, :length]
        seen = key <= query
        window = self.window or self.facts.window_of_layer(layer)
        if window is not None:
            seen &= (key > query - window[0]) | (key < window[1])
        return np.asarray(seen)

    def _feed_forward(self, block: str, x: Array) -> Array:
        has_norm = f"{block}ffn_norm.weight" in self.tensors
        before = "ffn_norm" if has_norm or not self.facts.parallel else "attn_norm"
        normed = self._post(block + before, x)
        if f"{block}ffn_gate_inp.weight" not in self.tensors:
            return self._dense(block, normed)
        y = self._experts(block, normed)
        if f"{block}ffn_down_shexp.weight" in self.tensors:
            gate = f"{block}ffn_gate_inp_shexp"
            score = normed @ self._weight(gate) if f"{gate}.weight" in self.tensors else None
            share = 1.0 if score is None else (1 / (1 + np.exp(-score)))[:, None]
            y += share * self._dense(block, normed, "_shexp")
        return y

    def _dense(self, block: str, x: Array, suffix: str = "") -> Array:
        down, up = f"{block}ffn_down{suffix}", self._linear(f"{block}ffn_up{suffix}", x)
        if f"{block}ffn_gate{suffix}.weight" in self.tensors:
            gate = self._linear(f"{block}ffn_gate{suffix}", x)
        elif up.shape[1] == 2 * self.tensors[f"{down}.weight"].shape[1]:
            gate, up = np.split(up, 2, axis=1)
        else:
            return self._linear(down, self.facts.activation(up))
        return self._linear(down, self._gated(gate, up))

    def _gated(self, gate: Array, up: Array) -> Array:
        if not self.facts.is_clamped:
            return self.facts.activation(gate) * up
        gate, up = np.minimum(gate, 7), np.clip(up, -7, 7)
        return np.asarray(gate / (1 + np.exp(-1.702 * gate)) * (up + 1))

    def _experts(self, block: str, x: Array) -> Array:
        """Token by token, expert by expert."""
        out = np.zeros_like(x)

        def times(name: str, e: int, y: Array) -> Array:
            bias = self.tensors.get(f"{block}ffn_{name}_exps.bias")
            product = self._weight(f"{block}ffn_{name}_exps")[e] @ y
            return product if bias is None else product + bias[e]

        for i, scores in enumerate(self._linear(block + "ffn_gate_inp", x)):
            for weight, e in zip(*self._chosen(block, scores), strict=True):
                inner = self._gated(times("gate", e, x[i]), times("up", e, x[i]))
                out[i] += weight * times("down", e, inner)
        return out

    def _chosen(self, block: str, scores: Array) -> tuple[Array, Array]:
        """The weights and the numbers of the experts of a token."""
        facts, rated = self.facts, scores
        if facts.sigmoid_scale:
            scores = 1 / (1 + np.exp(-scores))
            rated = scores + self.tensors.get(f"{block}exp_probs_b.bias", 0)
        best = np.argsort(-rated)[: facts.experts_per_token]
        if facts.sigmoid_scale:
            weights = scores[best]
        else:
            weights = softmax(scores[best]) if facts.softmax_of_chosen else softmax(scores)[best]
        if facts.renormalize:
            weights = weights / weights.sum()
        return weights * (facts.sigmoid_scale or 1.0), best

    def _linear(self, name: str, x: Array) -> Array:
        y = x @ self._weight(name).T
        return y + self.tensors[f"{name}.bias"] if f"{name}.bias" in self.tensors else y

    def _norm(self, name: str, x: Array) -> Array:
        eps = float(self._field("attention.layer_norm_rms_epsilon"))
        if f"{name}.bias" in self.tensors:
            x = x - x.mean(axis=-1, keepdims=True)
        normed = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * self._weight(name)
        return normed + self.tensors.get(f"{name}.bias", 0)

    def _post(self, name: str, x: Array) -> Array:
        return self._norm(name, x) if f"{name}.weight" in self.tensors else x

    def _head_norm(self, name: str, x: Array) -> Array:
        """Each head alone, or all of a token, as the weight is long."""
        if self.tensors.get(f"{name}.weight", x[0, 0]).size == self.head_dim:
            return self._post(name, x)
        return self._heads(self._norm(name, x.reshape(len(x), -1)))

    def _theta(self, layer: int) -> float:
        if self.facts.theta_of_layer is not None:
            return self.facts.theta_of_layer(layer)
        return float(self._field("rope.freq_base"))

    def _rotated(self, x: Array, theta: float | None, farthest: int | None = None) -> Array:
        """x [tokens, heads, dim], turned by position, if that is not beyond `farthest`."""
        if theta is None:
            return x
        dim = int(self._field("rope.dimension_count", self.head_dim))
        frequency = theta ** (-np.arange(0, dim, 2) / dim)
        frequency /= float(self._field("rope.scaling.factor", 1.0))
        if "rope_freqs.weight" in self.tensors:
            frequency /= self._weight("rope_freqs")
        position = np.minimum(np.arange(len(x)), len(x) if farthest is None else farthest)
        angle = (position[:, None] * frequency)[:, None]
        halves = (slice(0, dim // 2), slice(dim // 2, dim))
        first, second = (slice(0, dim, 2), slice(1, dim, 2)) if self.facts.interleaved else halves
        cos, sin = np.cos(angle) * self.facts.magnitude, np.sin(angle) * self.facts.magnitude
        turned = x.copy()
        turned[..., first] = x[..., first] * cos - x[..., second] * sin
        turned[..., second] = x[..., first] * sin + x[..., second] * cos
        return turned

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.head_dim)

    def _weight(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"]

    def _field(self, key: str, default: Any = None) -> Any:
        return self.fields.get(f"{self.facts.architecture}.{key}", default)

    def _number(self, key: str) -> int:
        return int(self._field(key))


def _float64(tensor: Any) -> Array:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(values, np.float64).reshape(tensor.shape[::-1].tolist())
