"""What the tests of encoders do: texts of token ids on a runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kept_libraries import build_kept

from mlc_llm.backends.registry import backend_of, choose_backend
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.loader.huggingface import HuggingFaceFolder
from mlc_llm.loader.tensor import Tensor
from mlc_llm.model_files.huggingface import plan_folder
from mlc_llm.models.registry import read_gguf
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.pooling import Pooling
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.encoder_runner import EncoderRunner

WANTED = Sampling(wants_hidden=True)


def runner_of(
    path: Path, folder: Path, kernels: str | None, pooling: Pooling = "mean"
) -> EncoderRunner:
    """A runner of the GGUF file, or the folder, at `path`, compiled into `folder`. kernels: None is
    this machine's."""
    if path.is_dir():
        opened = HuggingFaceFolder.open(path)
        plan, tensors = plan_folder(opened.config, opened.tensors)
    else:
        file = GGUFFile.open(path)
        plan, tensors = read_gguf(file.metadata, file.tensors), file.tensors
    return runner_of_plan(plan, tensors, folder, kernels, pooling)


def runner_of_plan(
    plan: WeightPlan,
    tensors: Mapping[str, Tensor],
    folder: Path,
    kernels: str | None,
    pooling: Pooling = "mean",
) -> EncoderRunner:
    """A runner of a planned encoder, compiled into `folder`."""
    backend = choose_backend() if kernels is None else backend_of(kernels)
    library, weights = (folder / f"{backend.name}-{part}" for part in ("library", "weights"))
    if not library.exists():
        library.mkdir(parents=True)
        weights.mkdir()
        build_kept(plan.spec, backend, library)
        pack_weights(plan, backend, tensors, weights, lambda _: None)
    return EncoderRunner(
        library, weights,
        pooling=pooling, max_num_sequence=8, max_batch_tokens=320,
        context_window=plan.spec.context_window,
    )  # fmt: skip


def computed(runner: EncoderRunner, texts: Sequence[list[int]], **more: Any) -> list[Any]:
    """The vectors of texts in one step."""
    rows = [BatchRow(i, text, [WANTED], **more) for i, text in enumerate(texts)]
    for row in rows:
        runner.add_sequence(row.seq_id)
    samples = runner.run(Batch(rows)).samples
    runner.check_integrity()
    runner.reset()
    assert all(one.error is None for (one,) in samples)
    return [one.hidden for (one,) in samples]
