"""Tiny models by name, compiled for each set of kernels: once for all runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from kept_libraries import build_kept

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.jit import library_names
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.errors import InvalidField
from mlc_llm.library.page_format import KVCacheDtype
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.spec import ModelSpec
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled
from mlc_llm.runtime.limits import NO_ADAPTERS, AdapterLimits, Window
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
    # Products of one shape that are needed at the same time: their results must not share memory.
    "keys-and-values-apart": Variant({"token_embd": "Q8_0", "attn_q": "Q4_1", "": "Q4_0"}),
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
        self,
        name: str,
        kernels: str,
        *,
        precision: Precision = "exact",
        windowed: bool = False,
        adapted: bool = False,
        kv_cache: KVCacheDtype = "auto",
    ) -> Path:
        """Folder of the compiled library. precision: what it is for, if there are such kernels.
        windowed: for a sliding window. adapted: for LoRA adapters."""
        _, plan = self._planned(name)
        if adapted:
            plan = plan.with_adapters()
        if windowed:
            plan = replace(plan, spec=plan.spec.with_sink_queries())
        backend = backend_of(kernels)
        with suppress(InvalidField):
            backend = backend.with_precision(precision)
        backend = backend.with_kv_cache(kv_cache)
        folder = self._folder / library_names(plan, backend).key
        if not folder.exists():
            folder.mkdir()
            build_kept(plan.spec, backend, folder)
        return folder

    def weights(self, name: str, kernels: str) -> Path:
        """Folder of the packed weights."""
        folder = self._folder / f"{name}-{kernels}"
        if not folder.exists():
            model, plan = self._planned(name)
            folder.mkdir()
            pack_weights(plan, backend_of(kernels), model.tensors, folder, lambda _: None)
        return folder

    def spec(self, name: str) -> ModelSpec:
        """What the model is."""
        return self._planned(name)[1].spec

    def _planned(self, name: str) -> tuple[GGUFFile, WeightPlan]:
        model = GGUFFile.open(self.path(name))
        return model, read_gguf(model.metadata, model.tensors)

    def runner(
        self,
        name: str,
        kernels: str,
        *,
        num_pages: int = 24,
        window: Window | None = None,
        precision: Precision = "exact",
        context_window: int = 512,
        adapters: AdapterLimits = NO_ADAPTERS,
        kv_cache: KVCacheDtype = "auto",
    ) -> ModelRunner:
        """A fresh runner for up to 4 sequences and 64 tokens a step."""
        return ModelRunner(
            self.library(
                name,
                kernels,
                precision=precision,
                windowed=window is not None,
                adapted=bool(adapters.slots),
                kv_cache=kv_cache,
            ),
            self.weights(name, kernels),
            num_pages=num_pages,
            max_num_sequence=4,
            max_batch_tokens=64,
            context_window=context_window,
            window=window,
            precision=precision,
            adapters=adapters,
            kv_cache=kv_cache,
        )


def run_rows(runner: ModelRunner, *rows: BatchRow) -> list[Sampled]:
    """All samples of one step, in the order of its rows."""
    output = runner.run(Batch(rows))
    runner.check_integrity()
    return [sample for samples in output.samples for sample in samples]
