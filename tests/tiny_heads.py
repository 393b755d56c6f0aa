"""Small random Medusa heads, and what they draft, in plain NumPy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tiny_folders import Stored, write_safetensors

Floats = npt.NDArray[np.float32]


@dataclass
class TinyMedusa:
    """Heads before they are written; tests change them."""

    hidden: int = 64
    vocab: int = 300
    heads: int = 3
    blocks: int = 1
    prefix: str = ""
    table: Floats | None = None
    """The matrix over the vocabulary of all heads; None: a random one for each."""
    config: dict[str, Any] = field(init=False)
    tensors: dict[str, Floats] = field(init=False)

    def __post_init__(self) -> None:
        rng, width = np.random.default_rng(self.heads), self.hidden
        self.config = {"medusa_num_heads": self.heads, "medusa_num_layers": self.blocks}
        self.tensors = {}
        for head in range(self.heads):
            for block in range(self.blocks):
                name = f"{self.prefix}{head}.{block}.linear"
                weight = rng.standard_normal((width, width)) / np.sqrt(width)
                self.tensors[f"{name}.weight"] = weight.astype(np.float32)
                self.tensors[f"{name}.bias"] = rng.standard_normal(width).astype(np.float32)
            table = rng.standard_normal((self.vocab, width)).astype(np.float32)
            self.tensors[f"{self.prefix}{head}.{self.blocks}.weight"] = (
                table if self.table is None else self.table
            )

    def logits(self, head: int, hidden: Floats) -> Floats:
        """Of hidden vectors [s, hidden]."""
        x = hidden
        for block in range(self.blocks):
            name = f"{self.prefix}{head}.{block}.linear"
            y = x @ self.tensors[f"{name}.weight"].T + self.tensors[f"{name}.bias"]
            x = x + y / (1 + np.exp(-y))
        found: Floats = x @ self.tensors[f"{self.prefix}{head}.{self.blocks}.weight"].T
        return found

    def write(self, path: Path) -> Path:
        """Into a new folder, whose path comes back."""
        path.mkdir()
        (path / "config.json").write_text(json.dumps(self.config))
        write_safetensors(path / "medusa_lm_head.safetensors", stored(self.tensors))
        return path


def stored(tensors: Mapping[str, Floats]) -> dict[str, Stored]:
    """In float32."""
    return {
        name: Stored("F32", one.shape, np.ascontiguousarray(one).reshape(-1).view(np.uint8))
        for name, one in tensors.items()
    }
