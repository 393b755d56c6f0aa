"""The weights and sizes of the model that a draft head learns from, in floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

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
