"""Whole models through the CUDA backend: the real kernels as CUDA source, launched by the real code
on a stand-in for the driver, computed by an emulator. Nothing is said about speed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from emulated_models import emulated_library
from emulation import COMPILER
from fake_cuda import run_in_fake
from fake_programs import GIVING_BACK, MENDED_BY_TVM
from model_programs import (
    TOKENS,
    fail_calls_of_an_engine,
    fail_calls_of_opening,
    logits,
    print_texts,
    print_window_texts,
    rows,
    texts,
    too_little_memory,
    two_engines,
    window_texts,
    window_tokens,
    windowed,
    written,
)
from tiny_models import TinyModels

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.runtime.limits import Window

pytestmark = pytest.mark.skipif(COMPILER is None, reason="needs g++, which compiles kernels")
WORST = 3e-3
"""Largest difference of a logit beside the reference, as a part of the largest one. Keys and values
are float16, which is nearly all of it."""
QUICK, SLOW = ("plain",), (
    "mixed-kinds", "keys-and-values-apart", "own-head", "floats", "float32", "bfloat16",
    "big-heads", "one-layer", "rope-factors",
)  # fmt: skip


def built(tiny_models: TinyModels, name: str) -> Path:
    file = GGUFFile.open(tiny_models.path(name))
    return emulated_library(read_gguf(file.metadata, file.tensors))


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in SLOW)])
def test_logits(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, name: str) -> None:
    out = tmp_path / "logits.npy"
    library, weights = built(tiny_models, name), tiny_models.weights(name, "cuda")
    run_in_fake(fake, logits, str(library), str(weights), str(out))
    exact = tiny_models.runner(name, "reference").logits(TOKENS)
    error = np.abs(np.load(out) - exact).max() / np.abs(exact).max()
    assert error <= WORST, error


def test_a_row_does_not_depend_on_others(tiny_models: TinyModels, fake: dict[str, str]) -> None:
    library, weights = built(tiny_models, "plain"), tiny_models.weights("plain", "cuda")
    run_in_fake(fake, rows, str(library), str(weights))


@pytest.mark.slow
def test_texts_of_an_engine(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path) -> None:
    model, library = str(tiny_models.path("plain")), str(built(tiny_models, "plain"))
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, print_texts, model, library, "auto", **settings)
    found, alive = json.loads(said.splitlines()[-1])
    assert found == texts(model, None, "cpu", "reference")
    *alone, together, in_parts = found
    assert [one for (one,) in alone] == together == in_parts
    assert not any(alive), "something of an engine is still on the GPU"


EVERY = [97, pytest.param(7, marks=pytest.mark.slow)]
MENDED = ("", *GIVING_BACK, *MENDED_BY_TVM, "cudaMemcpyAsync", "cudaEventRecord")
"""Functions whose failure may end no request: a step that failed is computed again."""


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("loses", [0, 1])
def test_a_call_may_fail_while_requests_run(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, loses: int, every: int
) -> None:
    """Requests end, with an error if need be; the next ones are computed if the GPU still is."""
    model, library = str(tiny_models.path("plain")), str(built(tiny_models, "plain"))
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, fail_calls_of_an_engine, model, library, loses, every, **settings)
    found = [json.loads(line) for line in said.splitlines()]
    assert len(found) >= 100 // every
    for failed, error in found:
        assert failed
        if loses and failed not in GIVING_BACK:
            assert error is not None and "\n" not in error, failed


@pytest.mark.parametrize("every", EVERY)
def test_a_call_may_fail_while_an_engine_opens(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, every: int
) -> None:
    model, library = str(tiny_models.path("plain")), str(built(tiny_models, "plain"))
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, fail_calls_of_opening, model, library, every, **settings)
    for line in said.splitlines():
        failed, error, alive = json.loads(line)
        assert failed
        assert error is None or "\n" not in error, error
        assert not any(alive), (failed, error)


@pytest.mark.slow
def test_two_engines_on_one_gpu(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path
) -> None:
    """They may compute at the same time, and closing one leaves the graphs of the other alone."""
    model, library = str(tiny_models.path("plain")), str(built(tiny_models, "plain"))
    said = run_in_fake(fake, two_engines, model, library, MLC_LLM_HOME=str(tmp_path))
    found, repeated, alive = json.loads(said.splitlines()[-1])
    assert len({str(answer) for answers in found.values() for answer in answers}) == 1
    assert repeated > 2
    assert not any(alive)


def built_for_windows(tiny_models: TinyModels) -> Path:
    file = GGUFFile.open(tiny_models.path("plain"))
    plan = read_gguf(file.metadata, file.tensors)
    return emulated_library(replace(plan, spec=plan.spec.with_sink_queries()))


@pytest.mark.parametrize(
    ("window", "pages"),
    [
        pytest.param(Window(33), 3, marks=pytest.mark.slow),
        pytest.param(Window(33, 4), 4, marks=pytest.mark.cuda),
    ],
)
def test_a_sliding_window(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path, window: Window, pages: int
) -> None:
    """Pages that nothing sees any more are given back, and steps are repeated nevertheless."""
    out, weights = tmp_path / "logits.npy", tiny_models.weights("plain", "cuda")
    given = (str(built_for_windows(tiny_models)), str(weights), window.size, window.sinks, str(out))
    said = run_in_fake(fake, windowed, *given)
    reference = tiny_models.runner("plain", "reference", window=window)
    exact = reference.logits(window_tokens(window.sinks), chunk=7)
    assert not window.sinks or len(exact) > window.far + 10
    error = np.abs(np.load(out) - exact).max() / np.abs(exact).max()
    print(f"error {error:.1e}")
    assert error <= WORST
    assert json.loads(said) == [written(reference), pages], "of 109 tokens 33 are seen, and sinks"


@pytest.mark.cuda
def test_texts_behind_a_window_with_sinks(
    tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path
) -> None:
    model, library = str(tiny_models.path("plain")), str(built_for_windows(tiny_models))
    settings = {"MLC_LLM_HOME": str(tmp_path)}
    said = run_in_fake(fake, print_window_texts, model, library, "auto", **settings)
    alone, together, in_parts = json.loads(said.splitlines()[-1])
    assert alone == together == in_parts
    assert [alone, together, in_parts] == window_texts(model, None, "cpu", "reference")


def test_too_little_memory(tiny_models: TinyModels, fake: dict[str, str], tmp_path: Path) -> None:
    model, library = str(tiny_models.path("plain")), str(built(tiny_models, "plain"))
    settings = {"MLC_LLM_HOME": str(tmp_path), "FAKE_CUDA_MEMORY": 300 << 20}
    words, alive = run_in_fake(fake, too_little_memory, model, library, **settings).splitlines()
    assert "max_total_sequence_length = 1048576 is not allowed" in words
    assert not any(json.loads(alive))
