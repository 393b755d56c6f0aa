"""RWKV-7: the formulas of its paper against the author's own package, and our kernels against
both, from a folder and from the file that llama.cpp's converter makes of it."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the oracle extra is not installed")

from architecture_tools import relative_error, runner_of, runner_of_folder
from converted import converted, needs_converter
from llama_cpp_side import logits_of, needs_llama_cpp
from ours import greedy
from rwkv7_reference import logits
from rwkv_model import RandomRwkv7
from small_models import SAME, VARIED, WORST, exact_logits

pytestmark = [pytest.mark.oracle, pytest.mark.slow]
TOKENS = np.random.default_rng(0).integers(0, 256, 120).tolist()
PROMPT, ANSWER = 30, 64
OF_AUTHOR = 1e-5
"""The package computes in float32, and has e^-0.5 with six digits."""


def test_the_formulas_are_those_of_the_author(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(os.environ, "RWKV_V7_ON", "1")
    model = RandomRwkv7(0)
    model.save_author(tmp_path / "model")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package's own
        package = pytest.importorskip("rwkv.model", reason="the package rwkv is not installed")
        found, _ = package.RWKV(str(tmp_path / "model"), "cpu fp32").forward(TOKENS, None, True)
    exact = logits(model.tensors, TOKENS, 64)
    error = relative_error(found.numpy(), exact)
    print(f"the author's package: {error:.1e}")
    assert error <= OF_AUTHOR


@pytest.mark.parametrize("kernels", ["reference", "portable", None])
@pytest.mark.parametrize(("seed", "head_dim"), [(0, 64), (1, 32), (2, 16)])
def test_a_folder(tmp_path: Path, seed: int, head_dim: int, kernels: str | None) -> None:
    model = RandomRwkv7(seed, head_dim)
    model.save_pretrained(tmp_path)
    (tmp_path / "out").mkdir()
    runner = runner_of_folder(tmp_path, tmp_path / "out", kernels)
    # A folder's norms of heads depend on their size.
    exact = logits(model.tensors, TOKENS, head_dim, head_eps=head_dim * 1e-5)
    whole = runner.logits(TOKENS)
    error = relative_error(whole, exact)
    print(f"{seed} {head_dim} {kernels}: {error:.1e}")
    assert error <= WORST
    for chunk in (1, 7, 64):
        assert (runner.logits(TOKENS, chunk=chunk) == whole).all(), chunk


@needs_converter
@needs_llama_cpp
@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("seed", range(3))
def test_a_file_of_the_converter(tmp_path: Path, seed: int, kernels: str | None) -> None:
    model = RandomRwkv7(seed)
    path = converted(model, tmp_path)
    for part in ("of-file", "of-folder"):
        (tmp_path / part).mkdir()
    runner = runner_of(path, tmp_path / "of-file", kernels)
    error = relative_error(runner.logits(TOKENS), logits_of(path, TOKENS))
    print(f"{seed} {kernels}: {error:.1e} from llama.cpp")
    assert error <= WORST
    assert relative_error(runner.logits(TOKENS), exact_logits(model, TOKENS)) <= WORST
    of_folder = runner_of_folder(tmp_path, tmp_path / "of-folder", kernels)
    assert relative_error(of_folder.logits(TOKENS), runner.logits(TOKENS)) <= SAME
    answer = greedy(runner, TOKENS[:PROMPT], ANSWER)
    assert len(set(answer)) >= VARIED
    for exact in (
        exact_logits(model, TOKENS[:PROMPT] + answer),
        logits_of(path, TOKENS[:PROMPT] + answer),
    ):
        assert exact.argmax(axis=1).tolist()[PROMPT - 1 : -1] == answer
