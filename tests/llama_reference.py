"""A Llama in NumPy float64, straight from a GGUF file read by the gguf package.

Rotary pairs are neighbouring rows (2i, 2i+1) here, as the file has them; ours pairs halves after
reordering rows on loading, so a wrong order cannot cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


class ReferenceLlama:
    """All logits of a sequence at once, float64 [tokens, vocab]."""

    def __init__(self, path: Path, window: tuple[int, int] | None = None) -> None:
        """window: how many tokens one sees, itself included, and how many first ones; these from
        no farther than if the window began where the 128 places end that they are in."""
        self.window = window
        reader = gguf.GGUFReader(path)
        self.fields = {key: field.contents() for key, field in reader.fields.items()}
        self.tensors = {t.name: _float64(t) for t in reader.tensors}
        self.heads = self._number("attention.head_count")
        self.kv_heads = self._number("attention.head_count_kv")
        self.head_dim = self._number("attention.key_length")

    def logits(self, token_ids: Sequence[int]) -> Array:
        x = self._weight("token_embd")[list(token_ids)]
        for layer in range(self._number("block_count")):
            x = x + self._attention(f"blk.{layer}.", x)
            x = x + self._feed_forward(f"blk.{layer}.", x)
        head = "output" if "output.weight" in self.tensors else "token_embd"
        return self._norm("output_norm", x) @ self._weight(head).T

    def _attention(self, block: str, x: Array) -> Array:
        normed = self._norm(block + "attn_norm", x)
        q, k, v = (self._heads(normed @ self._weight(f"{block}attn_{n}").T) for n in "qkv")
        share = self.heads // self.kv_heads
        query, key = np.ogrid[: len(x), : len(x)]
        seen, turned = key <= query, self._rotated(q)
        k, v = np.repeat(self._rotated(k), share, 1), np.repeat(v, share, 1)
        scores = np.einsum("qhd,khd->hqk", turned, k) / np.sqrt(self.head_dim)
        if self.window is not None:
            size, sinks = self.window
            seen &= (key > query - size) | (key < sinks)
            nearer = self._rotated(q, farthest=size - 1 + 128 * math.ceil(sinks / 128))
            of_sinks = np.einsum("qhd,khd->hqk", nearer, k[:sinks]) / np.sqrt(self.head_dim)
            scores[:, :, :sinks] = of_sinks
        scores[:, ~seen] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        out = np.einsum("hqk,khd->qhd", weights, v).reshape(len(x), -1)
        return out @ self._weight(block + "attn_output").T

    def _feed_forward(self, block: str, x: Array) -> Array:
        normed = self._norm(block + "ffn_norm", x)
        gate, up = (normed @ self._weight(f"{block}ffn_{n}").T for n in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self._weight(block + "ffn_down").T

    def _norm(self, name: str, x: Array) -> Array:
        mean = (x**2).mean(axis=1, keepdims=True)
        eps = float(self.fields["llama.attention.layer_norm_rms_epsilon"])
        return x / np.sqrt(mean + eps) * self._weight(name)

    def _rotated(self, x: Array, farthest: int | None = None) -> Array:
        """x [tokens, heads, dim], turned by position, if that is not beyond `farthest`: elements 2i
        and 2i+1 are a pair."""
        dim = self.head_dim
        frequency = float(self.fields["llama.rope.freq_base"]) ** (-np.arange(0, dim, 2) / dim)
        frequency /= float(self.fields.get("llama.rope.scaling.factor", 1.0))
        if "rope_freqs.weight" in self.tensors:
            frequency /= self._weight("rope_freqs")
        position = np.minimum(np.arange(len(x)), len(x) if farthest is None else farthest)
        angle = (position[:, None] * frequency)[:, None]
        even, odd = x[..., 0::2], x[..., 1::2]
        turned = np.empty_like(x)
        turned[..., 0::2] = even * np.cos(angle) - odd * np.sin(angle)
        turned[..., 1::2] = even * np.sin(angle) + odd * np.cos(angle)
        return turned

    def _heads(self, x: Array) -> Array:
        return x.reshape(len(x), -1, self.head_dim)

    def _weight(self, name: str) -> Array:
        return self.tensors[f"{name}.weight"]

    def _number(self, key: str) -> int:
        return int(self.fields[f"llama.{key}"])


def _float64(tensor: Any) -> Array:
    values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(values, np.float64).reshape(tensor.shape[::-1].tolist())
