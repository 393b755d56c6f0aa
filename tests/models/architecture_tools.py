"""What the tests of all architectures do: random small models against an independent reference."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from decoder_reference import Facts, ReferenceDecoder
from kept_libraries import build_kept

from mlc_llm.backends.registry import backend_of, choose_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.huggingface import plan_folder
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.limits import NO_ADAPTERS, AdapterLimits
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

FLOATS = {"": "F32"}
TOKENS = np.random.default_rng(0).integers(0, 300, 90).tolist()
CHUNKS = (1, 7, 64)


def runner_of(path: Path, folder: Path, kernels: str | None, num_pages: int = 24) -> ModelRunner:
    """A runner of the model in a file, compiled into `folder`. kernels: None is this machine's."""
    file = GGUFFile.open(path)
    plan = read_gguf(file.metadata, file.tensors)
    return runner_of_plan(plan, file.tensors, folder, kernels, num_pages)


def runner_of_folder(
    path: Path, folder: Path, kernels: str | None, num_pages: int = 24, **more: Any
) -> ModelRunner:
    """The same for a Hugging Face folder. more: of `ModelRunner`."""
    opened = HuggingFaceFolder.open(path)
    plan, tensors = plan_folder(opened.config, opened.tensors)
    return runner_of_plan(plan, tensors, folder, kernels, num_pages, **more)


def runner_of_plan(
    plan: WeightPlan,
    tensors: Mapping[str, Tensor],
    folder: Path,
    kernels: str | None,
    num_pages: int = 24,
    *,
    adapters: AdapterLimits = NO_ADAPTERS,
    **more: Any,
) -> ModelRunner:
    """A runner of a planned model, compiled into `folder`. more: of `ModelRunner`."""
    plan = plan.with_adapters() if adapters.slots else plan
    backend = choose_backend() if kernels is None else backend_of(kernels)
    library, weights = (folder / f"{backend.name}-{part}" for part in ("library", "weights"))
    if not library.exists():
        library.mkdir()
        weights.mkdir()
        build_kept(plan.spec, backend, library)
        pack_weights(plan, backend, tensors, weights, lambda _: None)
    return ModelRunner(
        library, weights,
        num_pages=num_pages, max_num_sequence=4, max_batch_tokens=64, adapters=adapters,
        **{"context_window": 512, **more},
    )  # fmt: skip


def check_against_numpy(
    folder: Path, shape: TinyShape, facts: Facts, kernels: str | None, *, seed: int, worst: float
) -> None:
    """Logits of a random model, in several chunk sizes, against float64; largest difference
    relative to the largest logit."""
    path = write_tiny_model(folder / "tiny.gguf", seed=seed, kinds=FLOATS, shape=shape)
    reference = ReferenceDecoder(path, facts)
    exact = reference.logits(TOKENS)
    runner = runner_of(path, folder, kernels)
    for chunk in CHUNKS:
        found = runner.logits(TOKENS, chunk=chunk)
        assert relative_error(found, exact) <= worst, f"in chunks of {chunk}"
    vector = hidden_vector(runner, TOKENS[:50])
    assert relative_error(vector, reference.hidden(TOKENS[:50])[-1]) <= worst
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


def hidden_vector(runner: ModelRunner, token_ids: list[int]) -> npt.NDArray[np.float32]:
    """The hidden vector behind the last of these tokens."""
    runner.add_sequence(0)
    wanted = Sampling(temperature=0, wants_hidden=True)
    ((sample,),) = runner.run(Batch([BatchRow(0, token_ids, [wanted])])).samples
    runner.remove_sequence(0)
    return np.array(sample.hidden, np.float32)


def relative_error(found: npt.NDArray[np.float32], exact: npt.NDArray[np.float64]) -> float:
    """Largest difference, as a part of the largest exact value."""
    return float(np.abs(found - exact).max() / np.abs(exact).max())
