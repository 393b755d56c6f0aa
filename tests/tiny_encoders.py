"""Encoders with random weights as GGUF files, and their formulas in NumPy float64.

The formulas are written from the papers (Devlin et al. 2018, Nussbaum et al. 2024) and share no
line with the package.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.testing.gguf_writer import TensorData, write_gguf

Array = npt.NDArray[np.float64]
HIDDEN, WIDE, HEADS, LAYERS, CONTEXT, EPS, THETA = 64, 96, 4, 2, 128, 1e-12, 1000.0
WORDS = ("the", "cat", "sat", "on", "mat", "dog", "##s", "##ing", "sleep", ",", ".", "!")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CLS, SEP = 2, 3
LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
TOKENS = (*SPECIAL, *WORDS, *LETTERS, *(f"##{one}" for one in LETTERS if one != "s"))
VOCABULARY = len(TOKENS)
POOLINGS = {"mean": 1, "cls": 2, "last_token": 3, "rank": 4}
_LARGE = {"token_embd.weight", "position_embd.weight", "token_types.weight"}


@dataclass(frozen=True)
class TinyEncoder:
    """What `write` makes a file of."""

    architecture: str = "bert"
    labels: int = 0
    pooling: str | None = "mean"
    types: int = 2
    """Kinds of tokens; with 1, those of a second text are like the others."""
    seed: int = 0

    @property
    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """By GGUF's names."""
        rng = np.random.default_rng(self.seed)
        found = {}
        for name, shape in self._shapes().items():
            values = rng.standard_normal(shape)
            if "norm.weight" in name:
                values = 1 + 0.1 * values
            elif len(shape) == 2 and name not in _LARGE:
                values *= 1.5 / math.sqrt(shape[1])
            found[name] = values.astype(np.float32)
        return found

    def write(self, path: Path) -> Path:
        """The file, whose path comes back."""
        name = self.architecture
        own: dict[str, Any] = {
            "block_count": LAYERS, "context_length": CONTEXT, "embedding_length": HIDDEN,
            "feed_forward_length": WIDE, "attention.head_count": HEADS,
            "attention.layer_norm_epsilon": EPS, "attention.causal": False,
        }  # fmt: skip
        if self.architecture == "nomic-bert":
            own["rope.freq_base"] = THETA
        if self.pooling is not None:
            own["pooling_type"] = POOLINGS[self.pooling]
        general = {"general.architecture": name, "general.name": "tiny random encoder"}
        metadata = {**general, **{f"{name}.{key}": value for key, value in own.items()}}
        tensors = {key: TensorData.quantized(values, "F32") for key, values in self.weights.items()}
        write_gguf(path, {**metadata, **wordpiece_metadata()}, tensors)
        return path

    def hidden(self, ids: Sequence[int], second_at: int = 0) -> Array:
        """Hidden vectors [tokens, HIDDEN] behind the last layer."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        count = len(ids)
        types = [min(int(0 < second_at <= i), self.types - 1) for i in range(count)]
        x = w["token_embd.weight"][ids] + w["token_types.weight"][types]
        if self.architecture == "bert":
            x = x + w["position_embd.weight"][:count]
        x = _norm(w, "token_embd_norm", x)
        for i in range(LAYERS):
            x = _norm(w, f"blk.{i}.attn_output_norm", x + self._attention(w, f"blk.{i}.", x))
            x = _norm(w, f"blk.{i}.layer_output_norm", x + self._network(w, f"blk.{i}.", x))
        return x

    def scores(self, ids: Sequence[int], second_at: int) -> Array:
        """Of a pair."""
        w = {name: values.astype(np.float64) for name, values in self.weights.items()}
        first = self.hidden(ids, second_at)[0]
        dense = np.tanh(w["cls.weight"] @ first + w["cls.bias"])
        return np.asarray(w["cls.output.weight"] @ dense + w["cls.output.bias"])

    def pooled(self, ids: Sequence[int]) -> Array:
        """The embedding of a text, of length 1."""
        hidden = self.hidden(ids)
        made = {"cls": hidden[0], "last_token": hidden[-1]}
        vector = made.get(self.pooling or "mean", hidden.mean(axis=0))
        return np.asarray(vector / np.linalg.norm(vector))

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        is_bert = self.architecture == "bert"
        square, up, down = (HIDDEN, HIDDEN), (WIDE, HIDDEN), (HIDDEN, WIDE)
        matrices = {"attn_output": square, "ffn_up": up, "ffn_down": down}
        matrices |= dict.fromkeys(("attn_q", "attn_k", "attn_v"), square) if is_bert else {}
        matrices |= {} if is_bert else {"attn_qkv": (3 * HIDDEN, HIDDEN), "ffn_gate": up}
        found: dict[str, tuple[int, ...]] = {
            "token_embd.weight": (VOCABULARY, HIDDEN),
            "token_types.weight": (self.types, HIDDEN),
        }
        found |= {"position_embd.weight": (CONTEXT, HIDDEN)} if is_bert else {}
        found |= {f"token_embd_norm.{end}": (HIDDEN,) for end in ("weight", "bias")}
        for i in range(LAYERS):
            for name, shape in matrices.items():
                found[f"blk.{i}.{name}.weight"] = shape
                found |= {f"blk.{i}.{name}.bias": shape[:1]} if is_bert else {}
            for name in ("attn_output_norm", "layer_output_norm"):
                found |= {f"blk.{i}.{name}.{end}": (HIDDEN,) for end in ("weight", "bias")}
        if self.labels:
            found |= {"cls.weight": square, "cls.bias": (HIDDEN,)}
            found |= {"cls.output.weight": (self.labels, HIDDEN), "cls.output.bias": (self.labels,)}
        return found

    def _attention(self, w: dict[str, Array], at: str, x: Array) -> Array:
        if self.architecture == "bert":
            parts = [x @ w[f"{at}attn_{n}.weight"].T + w[f"{at}attn_{n}.bias"] for n in "qkv"]
        else:
            parts = np.split(x @ w[f"{at}attn_qkv.weight"].T, 3, axis=1)
        q, k, v = (part.reshape(len(x), HEADS, -1).transpose(1, 0, 2) for part in parts)
        if self.architecture != "bert":
            q, k = _turned(q), _turned(k)
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[2])
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        heads = weights / weights.sum(axis=2, keepdims=True) @ v
        out = heads.transpose(1, 0, 2).reshape(len(x), HIDDEN) @ w[f"{at}attn_output.weight"].T
        return np.asarray(out + w.get(f"{at}attn_output.bias", 0.0))

    def _network(self, w: dict[str, Array], at: str, x: Array) -> Array:
        up = x @ w[f"{at}ffn_up.weight"].T
        if self.architecture == "bert":
            up = up + w[f"{at}ffn_up.bias"]
            inner = up * (1 + np.vectorize(math.erf)(up / math.sqrt(2))) / 2
            return np.asarray(inner @ w[f"{at}ffn_down.weight"].T + w[f"{at}ffn_down.bias"])
        gate = x @ w[f"{at}ffn_gate.weight"].T
        return np.asarray((gate / (1 + np.exp(-gate)) * up) @ w[f"{at}ffn_down.weight"].T)


def wordpiece_metadata() -> dict[str, Any]:
    """The `tokenizer.*` keys as llama.cpp's converter writes them for a BERT."""

    def spelled(token: str) -> str:
        if token in SPECIAL:
            return token
        return token[2:] if token.startswith("##") else f"\u2581{token}"

    return {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [spelled(token) for token in TOKENS],
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in TOKENS],
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.seperator_token_id": SEP,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.cls_token_id": CLS,
        "tokenizer.ggml.bos_token_id": CLS,
        "tokenizer.ggml.eos_token_id": SEP,
    }


def _norm(w: dict[str, Array], name: str, x: Array) -> Array:
    centred = x - x.mean(axis=1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(axis=1, keepdims=True) + EPS)
    return np.asarray(centred / deviation * w[f"{name}.weight"] + w[f"{name}.bias"])


def _turned(x: Array) -> Array:
    """Heads [heads, tokens, dim] with halves paired."""
    half = x.shape[2] // 2
    angle = np.arange(x.shape[1])[:, None] * THETA ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    turned = [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
    return np.concatenate(turned, axis=2)
