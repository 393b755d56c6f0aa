"""The model that a draft head learns from, in floats: what its layers make of texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch.nn import functional

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.quantization.ggml_blocks import dequantize


class FloatModel:
    """A GGUF file of architecture `llama` with a tied head, as the default model is one."""

    def __init__(self, path: Path, taps: tuple[int, ...]) -> None:
        """taps: behind how many layers vectors are wanted."""
        file = GGUFFile.open(path)
        if file.metadata.get("general.architecture") != "llama" or "output.weight" in file.tensors:
            raise SystemExit(f"{path}: this script knows llama models with a tied head")
        self.taps = taps
        self.layers = file.get_int("llama.block_count")
        self.heads = file.get_int("llama.attention.head_count")
        self.kv_heads = file.get_int("llama.attention.head_count_kv")
        self.eps = float(file.metadata["llama.attention.layer_norm_rms_epsilon"])  # type: ignore[arg-type]
        self.theta = float(file.metadata["llama.rope.freq_base"])  # type: ignore[arg-type]
        self.weights = {
            name: torch.from_numpy(np.array(dequantize(one.kind, one.data, one.shape)))
            for name, one in file.tensors.items()
        }
        self.table, self.norm = (
            self.weights["token_embd.weight"],
            self.weights["output_norm.weight"],
        )
        self.vocab, self.hidden = self.table.shape
        self.head_dim = self.hidden // self.heads

    @staticmethod
    def depth_of(path: Path) -> int:
        """Its layers."""
        return GGUFFile.open(path).get_int("llama.block_count")

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def __call__(self, tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The vectors [texts, tokens, taps * hidden] behind the layers of the taps, and those
        behind the last norm. tokens: [texts, tokens]."""
        x, found = self.table[tokens], {}
        for i in range(self.layers):
            found[i] = x
            x = x + self._attended(self._normed(x, f"blk.{i}.attn_norm"), f"blk.{i}")
            x = x + self._fed(self._normed(x, f"blk.{i}.ffn_norm"), f"blk.{i}")
        found[self.layers] = x
        tapped = torch.cat([found[one] for one in self.taps], dim=-1)
        return tapped, self._normed(x, "output_norm")

    def _of(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T

    def _normed(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight = self.weights[f"{name}.weight"]
        return functional.rms_norm(x, (self.hidden,), weight, self.eps)

    def _fed(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        gate = functional.silu(self._of(x, f"{layer}.ffn_gate"))
        return self._of(gate * self._of(x, f"{layer}.ffn_up"), f"{layer}.ffn_down")

    def _attended(self, x: torch.Tensor, layer: str) -> torch.Tensor:
        texts, count, _ = x.shape
        q, k, v = (
            self._of(x, f"{layer}.attn_{one}")
            .reshape(texts, count, -1, self.head_dim)
            .transpose(1, 2)
            for one in "qkv"
        )
        heads = functional.scaled_dot_product_attention(
            self._turned(q), self._turned(k), v, is_causal=True, enable_gqa=True
        )
        return self._of(heads.transpose(1, 2).reshape(texts, count, -1), f"{layer}.attn_output")

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Pairs lie beside each other in GGUF files."""
        half = self.head_dim // 2
        angles = torch.arange(x.shape[2])[:, None] * self.theta ** (-torch.arange(half) / half)
        cos, sin, low, high = angles.cos(), angles.sin(), x[..., 0::2], x[..., 1::2]
        return torch.stack([low * cos - high * sin, high * cos + low * sin], dim=-1).flatten(-2)
