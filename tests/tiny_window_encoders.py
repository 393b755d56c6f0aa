"""Encoders whose layers see windows on both sides, as GGUF files, and their formulas in NumPy.

The formulas are written from the papers (Warner et al. 2024; Gemma Team 2025) and share no line
with the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_encoders import VOCABULARY, wordpiece_metadata

from mlc_llm.testing.gguf_writer import TensorData, write_gguf

Array = npt.NDArray[np.float64]
HIDDEN, WIDE, HEADS, DIM, CONTEXT, EPS = 64, 96, 4, 16, 256, 1e-5
THETAS = (160_000.0, 10_000.0)
"""Of the layer that sees everything, and of the one with a window."""


@dataclass(frozen=True)
class TinyWindowEncoder:
    """Two layers, one with a window. `write` makes a file of it."""

    architecture: str
    """modern-bert or gemma-embedding."""
    window: int = 14
    labels: int = 0
    pooling: str = "mean"
    """Of pairs."""
    projections: tuple[int, ...] = ()

    @property
    def is_gemma(self) -> bool:
        return self.architecture == "gemma-embedding"

    @property
    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """By GGUF's names."""
        rng = np.random.default_rng(3)
        found = {}
        for name, shape in self._shapes().items():
            values = rng.standard_normal(shape)
            if "norm" in name:
                values = 1 + 0.1 * values
            elif len(shape) == 2 and name != "token_embd.weight":
                values *= 1.5 / math.sqrt(shape[1])
            found[name] = values.astype(np.float32)
        return found

    def write(self, path: Path) -> Path:
        """The file, whose path comes back."""
        name, eps = self.architecture, "rms_epsilon" if self.is_gemma else "epsilon"
        own: dict[str, Any] = {
            "block_count": 2, "context_length": CONTEXT, "embedding_length": HIDDEN,
            "feed_forward_length": WIDE, "attention.head_count": HEADS,
            "attention.head_count_kv": 2 if self.is_gemma else HEADS,
            f"attention.layer_norm_{eps}": EPS, "attention.key_length": DIM,
            "attention.sliding_window": self.window, "attention.sliding_window_pattern": 2,
            "rope.freq_base": THETAS[0], "rope.freq_base_swa": THETAS[1], "pooling_type": 1,
        }  # fmt: skip
        if not self.is_gemma:
            own["attention.causal"] = False
            own["classifier.pooling_type"] = {"mean": 1, "cls": 2}[self.pooling]
        general = {"general.architecture": name, "general.name": "tiny random encoder"}
        metadata = {**general, **{f"{name}.{key}": value for key, value in own.items()}}
        tensors = {key: TensorData.quantized(values, "F32") for key, values in self.weights.items()}
        write_gguf(path, {**metadata, **wordpiece_metadata()}, tensors)
        return path

    def hidden(self, ids: Sequence[int]) -> Array:
        """Hidden vectors [tokens, HIDDEN] behind the last norm."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        x = w["token_embd.weight"][ids]
        x = x * math.sqrt(HIDDEN) if self.is_gemma else self._norm(w["token_embd_norm.weight"], x)
        for i in range(2):
            at = f"blk.{i}."
            y = (
                self._heads(w, i, self._before(w, f"{at}attn_norm", x))
                @ w[f"{at}attn_output.weight"].T
            )
            x = x + self._after(w, f"{at}post_attention_norm", y)
            y = self._network(w, at, self._before(w, f"{at}ffn_norm", x))
            x = x + self._after(w, f"{at}post_ffw_norm", y)
        return self._norm(w["output_norm.weight"], x)

    def projected(self, vector: Array) -> Array:
        """A pooled vector behind the matrices."""
        for i, _ in enumerate(self.projections):
            vector = self.weights[f"dense_{i + 2}.weight"].astype(np.float64) @ vector
        return vector

    def scores(self, ids: Sequence[int]) -> Array:
        """Of a pair."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        hidden = self.hidden(ids)
        vector = hidden[0] if self.pooling == "cls" else hidden.mean(axis=0)
        inner = self._norm(w["cls.norm.weight"], _gelu(w["cls.weight"] @ vector)[None])[0]
        return np.asarray(w["cls.output.weight"] @ inner + w["cls.output.bias"])

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCABULARY, HIDDEN)}
        found["output_norm.weight"] = (HIDDEN,)
        for i in range(2):
            found |= {f"blk.{i}.{name}": shape for name, shape in self._of_layer().items()}
        columns = HIDDEN
        for i, rows in enumerate(self.projections):
            found[f"dense_{i + 2}.weight"], columns = (rows, columns), rows
        if not self.is_gemma:
            found["token_embd_norm.weight"] = (HIDDEN,)
            del found["blk.0.attn_norm.weight"]
        if self.labels:
            found |= {"cls.weight": (HIDDEN, HIDDEN), "cls.norm.weight": (HIDDEN,)}
            found |= {"cls.output.weight": (self.labels, HIDDEN), "cls.output.bias": (self.labels,)}
        return found

    def _of_layer(self) -> dict[str, tuple[int, ...]]:
        norms = ["attn_norm", "ffn_norm"]
        found: dict[str, tuple[int, ...]] = {"attn_output.weight": (HIDDEN, HIDDEN)}
        found["ffn_down.weight"] = (HIDDEN, WIDE)
        if self.is_gemma:
            norms += ["post_attention_norm", "post_ffw_norm"]
            found |= dict.fromkeys(("ffn_gate.weight", "ffn_up.weight"), (WIDE, HIDDEN))
            found |= dict.fromkeys(("attn_q_norm.weight", "attn_k_norm.weight"), (DIM,))
            found["attn_q.weight"] = (HIDDEN, HIDDEN)
            found |= dict.fromkeys(("attn_k.weight", "attn_v.weight"), (HIDDEN // 2, HIDDEN))
        else:
            found |= {"attn_qkv.weight": (3 * HIDDEN, HIDDEN), "ffn_up.weight": (2 * WIDE, HIDDEN)}
        return found | {f"{name}.weight": (HIDDEN,) for name in norms}

    def _norm(self, weight: Array, x: Array) -> Array:
        centred = x if self.is_gemma else x - x.mean(axis=-1, keepdims=True)
        return np.asarray(
            centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + EPS) * weight
        )

    def _before(self, w: dict[str, Array], name: str, x: Array) -> Array:
        return self._norm(w[f"{name}.weight"], x) if f"{name}.weight" in w else x

    def _after(self, w: dict[str, Array], name: str, y: Array) -> Array:
        return self._norm(w[f"{name}.weight"], y) if self.is_gemma else y

    def _heads(self, w: dict[str, Array], i: int, x: Array) -> Array:
        at, is_local = f"blk.{i}.", (i == 0) == self.is_gemma
        if self.is_gemma:
            parts = [x @ w[f"{at}attn_{name}.weight"].T for name in "qkv"]
        else:
            parts = np.split(x @ w[f"{at}attn_qkv.weight"].T, 3, axis=1)
        q, k, v = (part.reshape(len(x), -1, DIM).transpose(1, 0, 2) for part in parts)
        if self.is_gemma:
            q = self._norm(w[f"{at}attn_q_norm.weight"], q)
            k = self._norm(w[f"{at}attn_k_norm.weight"], k)
        q, k = (_turned(part, THETAS[is_local]) for part in (q, k))
        k, v = (np.repeat(part, len(q) // len(part), axis=0) for part in (k, v))
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(DIM)
        if is_local:
            places = np.arange(len(x))
            scores[:, abs(places[:, None] - places) > self.window // 2] = -np.inf
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        heads = weights / weights.sum(axis=2, keepdims=True) @ v
        return np.asarray(heads.transpose(1, 0, 2).reshape(len(x), HIDDEN))

    def _network(self, w: dict[str, Array], at: str, x: Array) -> Array:
        if self.is_gemma:
            gate, up = (x @ w[f"{at}ffn_{name}.weight"].T for name in ("gate", "up"))
            cubic = math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)
            inner = gate * (1 + np.tanh(cubic)) / 2 * up
        else:
            gate, up = np.split(x @ w[f"{at}ffn_up.weight"].T, 2, axis=1)
            inner = _gelu(gate) * up
        return np.asarray(inner @ w[f"{at}ffn_down.weight"].T)


def _gelu(x: Array) -> Array:
    return np.asarray(x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2)


def _turned(x: Array, theta: float) -> Array:
    """Heads [heads, tokens, dim] with halves paired."""
    half = x.shape[2] // 2
    angle = np.arange(x.shape[1])[:, None] * theta ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.concatenate(turned, axis=2)
