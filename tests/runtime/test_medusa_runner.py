"""Medusa heads through compiled code, against plain NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from kept_libraries import build_kept
from tiny_heads import TinyMedusa

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.errors import RequestError
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.model_files.medusa import open_medusa
from mlc_llm.runtime.batch import Sampling
from mlc_llm.runtime.medusa_runner import MedusaRunner

GREEDY = Sampling(temperature=0.0, top_logprobs=0)


def runner_of(heads: TinyMedusa, folder: Path, kernels: str = "reference") -> MedusaRunner:
    files, backend = open_medusa(heads.write(folder / "heads")), backend_of(kernels)
    library, weights = folder / "library", folder / "weights"
    library.mkdir(), weights.mkdir()
    build_kept(files.plan().spec, backend, library)
    pack_weights(files.plan(), backend, files.tensors, weights, lambda _: None)
    return MedusaRunner(library, weights)


@pytest.mark.parametrize("kernels", ["reference", "portable"])
def test_each_head_drafts_what_numpy_does(tmp_path: Path, kernels: str) -> None:
    heads = TinyMedusa(blocks=2, heads=2, prefix="medusa_head.")
    runner = runner_of(heads, tmp_path, kernels)
    hidden = np.random.default_rng(5).standard_normal((7, heads.hidden)).astype(np.float32)
    assert runner.count == 2
    for head in range(2):
        samples = runner.sample(head, hidden.tolist(), [GREEDY] * len(hidden))
        logits = heads.logits(head, hidden)
        assert [one.token_id for one in samples] == logits.argmax(1).tolist()
        logprobs = logits.max(1) - np.log(np.exp(logits).sum(1))
        np.testing.assert_allclose([one.logprob for one in samples], logprobs, atol=1e-4)


def test_what_is_no_hidden_vector_is_refused(tmp_path: Path) -> None:
    runner = runner_of(TinyMedusa(heads=1), tmp_path)
    with pytest.raises(RequestError, match="other sizes than 64"):
        runner.sample(0, [[0.0] * 63], [GREEDY])


def test_the_library_of_a_model_is_refused(tmp_path: Path, tiny_models: object) -> None:
    library = tiny_models.library("plain", "reference")  # type: ignore[attr-defined]
    with pytest.raises(BrokenLibrary, match="not of Medusa heads"):
        MedusaRunner(library, tmp_path)
