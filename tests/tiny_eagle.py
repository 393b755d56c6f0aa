"""Small random EAGLE heads as their authors' folders have them, and what they draft, in NumPy.

The arithmetic is that of `Model.forward` and `topK_genrate` in the authors' `cnets1.py` (EAGLE-1)
and `cnets.py` (EAGLE-3): all tokens of a text at once, in float64, without pages.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_reference import ReferenceDecoder, silu, softmax
from tiny_folders import Stored, write_safetensors

Floats = npt.NDArray[np.float64]
THETA = 10000.0


@dataclass
class TinyEagle:
    """A head before it is written; tests change it."""

    third: bool = False
    """EAGLE-3."""
    hidden: int = 64
    vocab: int = 300
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    intermediate: int = 96
    rows: int = 200
    """Of an EAGLE-3 head."""
    bias: bool = True
    """Of fc, and of queries, keys and values."""
    layer: str = ""
    taps: tuple[int, ...] = (0, 1, 2)
    config: dict[str, Any] = field(init=False)
    tensors: dict[str, npt.NDArray[Any]] = field(init=False)

    def __post_init__(self) -> None:
        rng, width = np.random.default_rng(7 + self.third), self.hidden
        self.layer = self.layer or ("midlayer" if self.third else "layers.0")
        self.config = {
            "architectures": ["LlamaForCausalLMEagle3" if self.third else "LlamaForCausalLM"],
            "model_type": "llama", "hidden_act": "silu", "hidden_size": width,
            "intermediate_size": self.intermediate, "max_position_embeddings": 2048,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim, "num_hidden_layers": 1, "rms_norm_eps": 1e-5,
            "rope_theta": THETA, "vocab_size": self.vocab, "tie_word_embeddings": False,
        }  # fmt: skip
        read, q, kv = (2 if self.third else 1) * width, self.heads, self.kv_heads
        sizes = {"q": (q, read), "k": (kv, read), "v": (kv, read)}
        shapes: dict[str, tuple[int, ...]] = {
            f"{self.layer}.self_attn.{part}_proj.weight": (count * self.head_dim, columns)
            for part, (count, columns) in sizes.items()
        }
        if self.bias:
            shapes |= {
                f"{self.layer}.self_attn.{part}_proj.bias": (count * self.head_dim,)
                for part, (count, _) in sizes.items()
            }
        mlp = f"{self.layer}.mlp"
        shapes |= {
            f"{self.layer}.self_attn.o_proj.weight": (width, q * self.head_dim),
            f"{mlp}.gate_proj.weight": (self.intermediate, width),
            f"{mlp}.up_proj.weight": (self.intermediate, width),
            f"{mlp}.down_proj.weight": (width, self.intermediate),
            f"{self.layer}.post_attention_layernorm.weight": (width,),
        }
        if self.third:
            self._add_third(shapes, rng)
        else:
            shapes |= {"fc.weight": (width, 2 * width), "embed_tokens.weight": (self.vocab, width)}
            shapes |= {"fc.bias": (width,)} if self.bias else {}
        made = {
            name: rng.standard_normal(shape) / shape[-1] ** 0.5 for name, shape in shapes.items()
        }
        made |= {name: 1 + one for name, one in made.items() if "norm" in name}
        self.tensors = {name: one.astype(np.float32) for name, one in made.items()}
        if self.third:
            targets = np.sort(rng.permutation(self.vocab)[: self.rows])
            self.tensors["d2t"] = (targets - np.arange(self.rows)).astype(np.int64)
            self.tensors["t2d"] = np.isin(np.arange(self.vocab), targets)

    def _add_third(self, shapes: dict[str, tuple[int, ...]], rng: np.random.Generator) -> None:
        width = self.hidden
        self.config |= {
            "draft_vocab_size": self.rows,
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(self.taps)},
        }
        shapes |= {
            "fc.weight": (width, len(self.taps) * width), "lm_head.weight": (self.rows, width),
            "norm.weight": (width,), f"{self.layer}.input_layernorm.weight": (width,),
            f"{self.layer}.hidden_norm.weight": (width,),
        }  # fmt: skip

    def write(self, path: Path) -> Path:
        """Into a new folder, whose path comes back."""
        path.mkdir()
        (path / "config.json").write_text(json.dumps(self.config))
        kinds = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL"}
        stored = {
            name: Stored(
                kinds[str(one.dtype)],
                one.shape,
                np.ascontiguousarray(one).reshape(-1).view(np.uint8),
            )
            for name, one in self.tensors.items()
        }
        write_safetensors(path / "model.safetensors", stored)
        return path

    def chain(self, model: ReferenceDecoder, text: Sequence[int], count: int) -> list[Floats]:
        """The logits [vocab] of `count` draft tokens behind a text, each the likeliest one."""
        head = "output" if "output.weight" in model.tensors else "token_embd"
        table, own = model._weight("token_embd"), model._weight(head)
        last = model.hidden(text[:-1])
        vectors = last
        if self.third:
            taps = [one + (self.taps[0] == 1) for one in self.taps]
            behind = [model.behind[i] for i in taps]
            vectors = np.concatenate(behind, axis=1) @ self._weight("fc.weight").T
        tokens, found = list(text), []
        for _ in range(count):
            x = self._layer(table[tokens[1:]], vectors)
            logits = self._logits(x[-1], own)
            found.append(logits)
            tokens.append(int(logits.argmax()))
            vectors = np.concatenate([vectors, x[-1:]])
        return found

    def _logits(self, x: Floats, own: Floats) -> Floats:
        if not self.third:
            return np.asarray(own @ x)
        small = self._weight("lm_head.weight") @ self._norm("norm.weight", x)
        found = np.full(self.vocab, -np.inf)
        found[np.arange(self.rows) + self.tensors["d2t"]] = small
        return found

    def _layer(self, embedded: Floats, vectors: Floats) -> Floats:
        name = self.layer
        if self.third:
            residual = vectors
            normed = self._norm(f"{name}.hidden_norm.weight", vectors)
            if self.config.get("norm_before_residual"):
                residual = normed
            embedded = self._norm(f"{name}.input_layernorm.weight", embedded)
            read = np.concatenate([embedded, normed], axis=1)
        else:
            residual = np.concatenate([embedded, vectors], axis=1) @ self._weight("fc.weight").T
            residual = read = residual + self.tensors.get("fc.bias", 0)
        q, k, v = (self._heads(part, read) for part in "qkv")
        q, k = self._turned(q), self._turned(k)
        share = self.heads // self.kv_heads
        k, v = np.repeat(k, share, 1), np.repeat(v, share, 1)
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(self.head_dim)
        scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
        heads = np.einsum("hqk,khd->qhd", softmax(scores), v).reshape(len(q), -1)
        x = residual + heads @ self._weight(f"{name}.self_attn.o_proj.weight").T
        y = self._norm(f"{name}.post_attention_layernorm.weight", x)
        gate, up = (y @ self._weight(f"{name}.mlp.{one}_proj.weight").T for one in ("gate", "up"))
        return np.asarray(x + (silu(gate) * up) @ self._weight(f"{name}.mlp.down_proj.weight").T)

    def _heads(self, part: str, x: Floats) -> Floats:
        name = f"{self.layer}.self_attn.{part}_proj"
        y = x @ self._weight(f"{name}.weight").T + self.tensors.get(f"{name}.bias", 0)
        return np.asarray(y.reshape(len(x), -1, self.head_dim))

    def _turned(self, x: Floats) -> Floats:
        """Row i at position i: the authors count from the first vector."""
        half = self.head_dim // 2
        angles = np.arange(len(x))[:, None] * THETA ** (-np.arange(half) / half)
        cos, sin = np.cos(angles)[:, None], np.sin(angles)[:, None]
        low, high = x[..., :half], x[..., half:]
        return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=2)

    def _norm(self, name: str, x: Floats) -> Floats:
        mean = np.mean(x**2, axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + 1e-5) * self._weight(name))

    def _weight(self, name: str) -> Floats:
        return np.asarray(self.tensors[name], np.float64)
