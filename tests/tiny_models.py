"""Tiny models compiled once a test run, by name, for each set of kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from mlc_llm.compiler.build import build_library
from mlc_llm.compiler.jit import library_key
from mlc_llm.compiler.weights import pack_weights, plan_model
from mlc_llm.kernels.isa import ISAS
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.gguf_llama import Plan
from mlc_llm.runtime.batch import Window
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.tiny_model import DEFAULT_KINDS, TinyShape, write_tiny_model


@dataclass(frozen=True)
class Variant:
    """Arguments of `write_tiny_model`."""

    kinds: Mapping[str, str] = field(default_factory=lambda: DEFAULT_KINDS)
    shape: TinyShape = field(default_factory=TinyShape)


VARIANTS = {
    "plain": Variant(),
    "linear-rope": Variant(shape=TinyShape(rope_linear=4.0)),
    "rope-factors": Variant(
        shape=TinyShape(rope_factors=(1.0, 1.0, 1.5, 2.0, 4.0, 8.0, 8.0, 8.0), rope_theta=5e5)
    ),
    "mixed-kinds": Variant(
        {"token_embd": "F16", "attn_v": "Q8_0", "ffn_up": "Q4_1", "ffn_down": "Q8_0", "": "Q4_0"}
    ),
    "own-head": Variant(
        {"token_embd": "Q4_0", "output": "Q8_0", "": "Q4_1"},
        TinyShape(tied_head=False, heads=6, kv_heads=2),
    ),
    "floats": Variant({"": "F16"}, TinyShape(tied_head=False)),
    "float32": Variant({"": "F32"}, TinyShape(heads=4, kv_heads=4)),
    "bfloat16": Variant({"": "BF16"}, TinyShape(heads=8, kv_heads=1)),
    "big-heads": Variant(
        shape=TinyShape(layers=1, heads=2, kv_heads=1, head_dim=128, intermediate=160)
    ),
    "two-heads": Variant(shape=TinyShape(heads=2, kv_heads=1, head_dim=32)),
    "one-layer": Variant({"": "Q8_0"}, TinyShape(layers=1, heads=1, kv_heads=1, head_dim=64)),
}


class TinyModels:
    """Files, libraries and runners below one folder; equal libraries are compiled once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def path(self, name: str) -> Path:
        """The model's GGUF file."""
        path = self._folder / f"{name}.gguf"
        if not path.exists():
            write_tiny_model(path, kinds=VARIANTS[name].kinds, shape=VARIANTS[name].shape)
        return path

    def library(
        self, name: str, isa_name: str, *, coarse: bool = False, windowed: bool = False
    ) -> Path:
        """Folder of the compiled library. coarse: with kernels for bfloat16 if it has tiles.
        windowed: for a sliding window."""
        _, plan = self._planned(name, isa_name)
        coarse = coarse and ISAS[isa_name].tiles
        isa = replace(ISAS[isa_name], coarse=coarse, windowed=windowed)
        folder = self._folder / library_key(plan, isa)
        if not folder.exists():
            folder.mkdir()
            build_library(plan.config, isa, folder)
        return folder

    def weights(self, name: str, isa_name: str) -> Path:
        """Folder of the packed weights."""
        folder = self._folder / f"{name}-{isa_name}"
        if not folder.exists():
            model, plan = self._planned(name, isa_name)
            folder.mkdir()
            pack_weights(plan, model.tensors, folder, lambda _: None)
        return folder

    def _planned(self, name: str, isa_name: str) -> tuple[GGUFFile, Plan]:
        model = GGUFFile.open(self.path(name))
        return model, plan_model(model.metadata, model.tensors, ISAS[isa_name])

    def runner(
        self,
        name: str,
        isa_name: str,
        *,
        num_pages: int = 24,
        window: Window | None = None,
        coarse_prompts: bool = False,
        context_window: int = 512,
    ) -> ModelRunner:
        """A fresh runner for up to 4 sequences and 64 tokens a step."""
        is_windowed = window is not None
        return ModelRunner(
            self.library(name, isa_name, coarse=coarse_prompts, windowed=is_windowed),
            self.weights(name, isa_name),
            num_pages=num_pages,
            max_num_sequence=4,
            max_batch_tokens=64,
            context_window=context_window,
            window=window,
            coarse_prompts=coarse_prompts,
        )
