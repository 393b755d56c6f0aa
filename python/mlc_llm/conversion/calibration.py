"""What each column of a matrix costs when it is rounded, measured on a text.

The first half of the text goes through the model in float32, and the mean square of what enters
each column is its importance. The second half measures what that is worth: the KL divergence of the
quantised model's next-token probabilities from those of the float32 model.
"""

from __future__ import annotations

import json
import math
import tempfile
import zlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mlc_llm.backends.cpu.backend import CpuBackend
from mlc_llm.backends.cpu.recording import SQUARES, RecordingBackend
from mlc_llm.backends.registry import choose_backend
from mlc_llm.compiler.build import build_library
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.conversion.importance import above_zero, by_expert
from mlc_llm.errors import UnsupportedModel, UserError
from mlc_llm.library.metadata import INDEX_FILE, PARAMS_ALIGNMENT, PARAMS_FILE
from mlc_llm.model_files.base import ModelFiles
from mlc_llm.model_files.quantized import QuantizedModel
from mlc_llm.models.weight_plan import WeightPlan
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.runtime.packed_file import Packed, read_packed
from mlc_llm.runtime.params import params_in
from mlc_llm.support.progress import Progress

Floats = npt.NDArray[np.float32]
Show = Callable[[str, "float | None"], AbstractContextManager[Progress]]
FEWEST, MOST = 64, 2048
"""Tokens of the text that are used: more than the first, at most the second."""
STEP = 128
"""Tokens that are computed at once."""


class Calibration(NamedTuple):
    """What the text says."""

    importance: dict[str, Floats]
    """float32 [columns] of each matrix, by GGUF's name of its tensor; of a stack [experts,
    columns]."""
    plain: float
    """Mean KL divergence when all columns count alike."""
    weighted: float
    """The same with the importance."""
    positions: int
    """Tokens behind which it was measured."""
    unmet: tuple[int, int] = (0, 0)
    """Experts that no token of the text met, of all experts of all layers. They get the importance
    of the others in their layer."""


def calibrate(files: ModelFiles, quantization: str, text: str, show: Show) -> Calibration:
    """Measure. Raises UserError for a text that is too short, UnsupportedModel, CompileError."""
    ids = files.tokenizer().encode(text[: 16 * MOST])[:MOST]
    if len(ids) < FEWEST:
        raise UserError(f"the text to calibrate with has {len(ids)} tokens; at least {FEWEST}")
    window = files.context_window
    first, second = ids[: len(ids) // 2][:window], ids[len(ids) // 2 :][:window]
    with tempfile.TemporaryDirectory() as folder:
        bench = _Bench(files, Path(folder), show, max(len(first), len(second)))
        runner, packed = bench.runner(files)
        for _ in runner.logits_by_step(first):
            pass
        importance, unmet = _importance(bench.plan, packed, len(first))
        expected = _logits(runner, second)
        del runner, packed
        plain, weighted = (
            bench.divergence(QuantizedModel.of_files(files, quantization, given), second, expected)
            for given in ({}, importance)
        )
    return Calibration(importance, plain, weighted, len(second), unmet)


class _Bench:
    """One library for matrices of floats, whatever they were rounded to before."""

    def __init__(self, files: ModelFiles, folder: Path, show: Show, tokens: int) -> None:
        backend = choose_backend()
        if not isinstance(backend, CpuBackend):
            raise UnsupportedModel(f"the {backend.name} kernels record nothing; use others")
        self._folder, self._show, self._tokens = folder, show, tokens
        self._backend = RecordingBackend(backend.isa)
        self.plan = self._floats(files).plan()
        self._backend.check(self.plan.spec)
        library = self._library = folder / "library"
        library.mkdir()
        spec = replace(self.plan.spec, active_vocab=files.tokenizer().vocab_size)
        with show("compiling for the calibration", None):
            build_library(spec, self._backend, library)

    @staticmethod
    def _floats(files: ModelFiles) -> QuantizedModel:
        return QuantizedModel.of_files(files, "f32")

    def runner(self, files: ModelFiles) -> tuple[ModelRunner, Packed]:
        """The model of some files, and its parameters, into which it records."""
        weights, floats = self._folder / "weights", self._floats(files)
        weights.mkdir(exist_ok=True)
        with self._show("preparing weights for the calibration", None):
            pack_weights(self.plan, self._backend, floats.tensors, weights, lambda n: None)
            _append_squares(weights, self.plan)
            packed = read_packed(weights)
        runner = ModelRunner(
            self._library,
            weights,
            num_pages=-(-self._tokens // self._backend.page_size) + 1,
            max_num_sequence=1,
            max_batch_tokens=STEP,
            context_window=self._tokens,
            read=lambda folder: packed,
        )
        return runner, packed

    def divergence(
        self, files: ModelFiles, ids: Sequence[int], expected: Sequence[Floats]
    ) -> float:
        """Of the logits that a model gives, from those that are expected."""
        runner, _ = self.runner(files)
        return _divergence(expected, _logits(runner, ids))


def _logits(runner: ModelRunner, ids: Sequence[int]) -> list[Floats]:
    return [logits.astype(np.float32, copy=False) for logits in runner.logits_by_step(ids)]


def _append_squares(folder: Path, plan: WeightPlan) -> None:
    """Write a parameter of zeros for each matrix behind the packed ones."""
    index = json.loads((folder / INDEX_FILE).read_text())
    with (folder / PARAMS_FILE).open("ab") as file:
        for prefix, sources in plan.matrices.items():
            *stack, _, columns = sources[0].shape
            shape = [stack[0], columns + 1] if stack else [columns]
            padding = -index["size"] % PARAMS_ALIGNMENT
            zeros = bytes(padding + 4 * math.prod(shape))
            file.write(zeros)
            offset = index["size"] + padding
            index["tensors"].append(
                {
                    "name": f"{prefix}.{SQUARES}",
                    "shape": shape,
                    "dtype": "float32",
                    "offset": offset,
                }
            )
            index["crc32"] = zlib.crc32(zeros, index["crc32"])
            index["size"] = offset + 4 * math.prod(shape)
    (folder / INDEX_FILE).write_text(json.dumps(index))


def _importance(
    plan: WeightPlan, packed: Packed, tokens: int
) -> tuple[dict[str, Floats], tuple[int, int]]:
    """Mean squares, for all tensors of a matrix, and the experts that met no token, of all. A
    column that saw nothing counts a little."""
    arrays, found = params_in(packed), dict[str, Floats]()
    unmet = total = 0
    for prefix, sources in plan.matrices.items():
        squares = np.array(arrays[f"{prefix}.{SQUARES}"].numpy(), np.float32)
        if squares.ndim == 2:
            if prefix.endswith(".up"):
                unmet, total = unmet + int((squares[:, -1] == 0).sum()), total + len(squares)
            squares = by_expert(squares[:, :-1], squares[:, -1])
        else:
            squares /= np.float32(tokens)
        if squares.mean() > 0:
            found |= {source.tensor: above_zero(squares) for source in sources}
    return found, (unmet, total)


def _divergence(expected: Sequence[Floats], found: Sequence[Floats]) -> float:
    """Mean of KL(expected || found) over all positions, from logits [positions, vocabulary]."""
    total = count = 0.0
    for one, other in zip(expected, found, strict=True):
        p, q = _log_softmax(one), _log_softmax(other)
        total += float((np.exp(p) * (p - q)).sum())
        count += len(one)
    return total / count


def _log_softmax(logits: Floats) -> npt.NDArray[np.float64]:
    wide = logits.astype(np.float64)
    wide -= wide.max(axis=1, keepdims=True)
    result: npt.NDArray[np.float64] = wide - np.log(np.exp(wide).sum(axis=1, keepdims=True))
    return result
