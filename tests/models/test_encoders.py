"""Tiny random encoders against their formulas in NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from encoder_tools import WANTED, computed, runner_of
from tiny_encoders import HIDDEN, VOCABULARY, TinyEncoder

from mlc_llm.errors import MLCError, ModelFileError, UnsupportedModel
from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.models.registry import read_gguf
from mlc_llm.runtime.batch import Batch, BatchRow
from mlc_llm.runtime.encoder_runner import EncoderRunner

LENGTHS = (1, 5, 16, 17, 120, 128, 2)
"""Texts that fill pages, and blocks of queries, and those that do not."""
RNG = np.random.default_rng(0)
TEXTS = [RNG.integers(0, VOCABULARY, count).tolist() for count in LENGTHS]
WORST = {"reference": 1e-5, None: 5e-3}
"""Of the largest number; this machine's kernels keep keys and values in float16."""
CASES = {
    "bert": TinyEncoder(labels=1),
    "one type": TinyEncoder(labels=1, types=1),
    "nomic-bert": TinyEncoder("nomic-bert"),
}


def runner_of_tiny(encoder: TinyEncoder, folder: Path, kernels: str | None) -> EncoderRunner:
    return runner_of(encoder.write(folder / "tiny.gguf"), folder, kernels)


@pytest.mark.one_of(2)
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("bert", "reference"), ("one type", None), ("nomic-bert", "reference"),
     ("bert", None), ("nomic-bert", None)],
)  # fmt: skip
def test_vectors_are_numpys(tmp_path: Path, name: str, kernels: str | None) -> None:
    """Whatever else is in the step, a text has the same bits."""
    encoder = CASES[name]
    runner = runner_of_tiny(encoder, tmp_path, kernels)
    together = computed(runner, TEXTS)
    for text, found in zip(TEXTS, together, strict=True):
        exact = encoder.hidden(text).mean(axis=0)
        assert np.abs(found - exact).max() <= WORST[kernels] * np.abs(exact).max()
        assert computed(runner, [text]) == [found], "in another step"
    assert computed(runner, TEXTS[::-1]) == together[::-1]
    if encoder.labels:
        pairs = computed(runner, TEXTS[1:], second_at=1)
        for text, (score,) in zip(TEXTS[1:], pairs, strict=True):
            (exact,) = encoder.scores(text, 1)
            assert score == pytest.approx(exact, abs=10 * WORST[kernels])


def test_poolings(tmp_path: Path) -> None:
    encoder = CASES["bert"]
    runner = runner_of_tiny(encoder, tmp_path, "reference")
    text, hidden = TEXTS[3], encoder.hidden(TEXTS[3])
    for pooling, exact in (("cls", hidden[0]), ("last_token", hidden[-1])):
        runner.pooling = pooling  # type: ignore[assignment]
        (found,) = computed(runner, [text])
        assert found == pytest.approx(exact, abs=1e-4)
    bad = BatchRow(0, [VOCABULARY], [WANTED])
    with pytest.raises(MLCError, match="token id outside 0 to"):
        runner.run(Batch([bad]))


def test_a_vector_that_is_not_finite_is_an_error(tmp_path: Path) -> None:
    runner = runner_of_tiny(CASES["bert"], tmp_path, "reference")
    broken = np.full((1, HIDDEN), np.nan, np.float32)
    runner._hidden = lambda rows: broken  # type: ignore[method-assign]
    ((sample,),) = runner.run(Batch([BatchRow(0, [1], [WANTED])])).samples
    assert sample.error is not None and "not finite" in sample.error


@pytest.mark.parametrize(
    ("changed", "error", "word"),
    [
        ({"bert.attention.causal": True}, UnsupportedModel, "attention.causal is True"),
        (
            {"bert.context_length": 4096},
            ModelFileError,
            r"expected \(4096, 64\)",
        ),
        ({"bert.attention.layer_norm_epsilon": 0.0}, ModelFileError, "layer_norm_epsilon"),
    ],
)
def test_broken_headers(
    tmp_path: Path, changed: dict[str, object], error: type[Exception], word: str
) -> None:
    file = GGUFFile.open(TinyEncoder().write(tmp_path / "tiny.gguf"))
    with pytest.raises(error, match=word):
        read_gguf({**file.metadata, **changed}, file.tensors)


def test_scores_that_lack_a_layer_are_refused(tmp_path: Path) -> None:
    file = GGUFFile.open(TinyEncoder(labels=1).write(tmp_path / "tiny.gguf"))
    tensors = {name: one for name, one in file.tensors.items() if name != "cls.weight"}
    with pytest.raises(UnsupportedModel, match=r"cls\.output\.weight and no cls\.weight"):
        read_gguf(file.metadata, tensors)
