"""EAGLE heads through compiled code, against plain NumPy."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from decoder_reference import ReferenceDecoder
from kept_libraries import build_kept
from tiny_eagle import TinyEagle
from tiny_models import TinyModels

from mlc_llm.backends.registry import backend_of
from mlc_llm.compiler.weights import pack_weights
from mlc_llm.model_files.eagle import open_eagle
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.serve.opening.bundle import open_model

TEXT = np.random.default_rng(3).integers(0, 256, 45).tolist()
GREEDY = Sampling(temperature=0.0, top_logprobs=20)
HEADS = {
    "first": TinyEagle(),
    "first-without-biases": TinyEagle(bias=False, heads=4, kv_heads=2, head_dim=16),
    "third": TinyEagle(third=True),
    "third-of-other-folders": TinyEagle(third=True, layer="layers.0", bias=False, taps=(1, 0)),
}
HEADS["third-of-other-folders"].config["norm_before_residual"] = True


def runner_of(
    heads: TinyEagle, models: TinyModels, folder: Path, kernels: str = "reference"
) -> ModelRunner:
    """The tiny model with its embedding as head."""
    model = open_model(str(models.path("plain"))).files
    assert model is not None
    files = open_eagle(heads.write(folder / "head"), model)
    backend, library, weights = backend_of(kernels), folder / "library", folder / "weights"
    library.mkdir(), weights.mkdir()
    build_kept(files.plan().spec, backend, library, quickest=True)
    pack_weights(files.plan(), backend, files.tensors, weights, lambda _: None)
    return ModelRunner(
        library, weights, num_pages=24, max_num_sequence=4, max_batch_tokens=64, context_window=512
    )


def drafted(runner: ModelRunner, seq_id: int, last: int, count: int) -> list[Sampled]:
    """A chain behind a sequence, which is as before afterwards."""
    found: list[Sampled] = []
    for _ in range(count):
        token = found[-1].token_id if found else last
        ((one,),) = runner.draft(Batch([BatchRow(seq_id, [token], [GREEDY])])).samples
        found.append(one)
    runner.rollback_sequence(seq_id, count)
    runner.check_integrity()
    return found


def agree(found: list[Sampled], wanted: list[np.ndarray], atol: float) -> float:
    """The chains are the same; returns the largest difference of a log-probability."""
    worst = 0.0
    for one, logits in zip(found, wanted, strict=True):
        logprobs = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        ids = [token for token, _ in one.top]
        worst = max(worst, *(abs(logprobs[token] - value) for token, value in one.top))
        assert one.token_id == int(logits.argmax()), (one.token_id, sorted(logprobs)[-2:])
        assert len(ids) == 20 and worst < atol
    return worst


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("name", "kernels", "atol"),
    [
        ("first", "reference", 1e-4),
        ("third", "reference", 1e-4),
        pytest.param("first-without-biases", "reference", 1e-4, marks=pytest.mark.slow),
        pytest.param("third-of-other-folders", "reference", 1e-4, marks=pytest.mark.slow),
        pytest.param("first", "portable", 0.02, marks=pytest.mark.slow),
        ("third", "portable", 0.02),
    ],
)
def test_a_chain_is_that_of_numpy(
    tmp_path: Path, tiny_models: TinyModels, name: str, kernels: str, atol: float
) -> None:
    """Whatever the steps that computed the text; also when it was forked and rolled back."""
    heads = HEADS[name]
    runner = runner_of(heads, tiny_models, tmp_path, kernels)
    wanted = heads.chain(ReferenceDecoder(tiny_models.path("plain")), TEXT, 4)
    runner.add_sequence(0)
    runner.run(Batch([BatchRow(0, TEXT[:-1], [])]))
    whole = drafted(runner, 0, TEXT[-1], 4)
    agree(whole, wanted, atol)
    runner.add_sequence(1)
    for start, end in ((0, 17), (17, 18), (18, 43), (43, 44)):
        runner.run(Batch([BatchRow(1, TEXT[start:end], [])]))
        drafted(runner, 1, 5, 2)  # other tokens, which are forgotten
    assert drafted(runner, 1, TEXT[-1], 4) == whole
    runner.fork_sequence(1, 2, 37)
    runner.run(Batch([BatchRow(2, [*TEXT[37:44], 1, 2, 3], [GREEDY])]))
    runner.rollback_sequence(2, 3)
    assert drafted(runner, 2, TEXT[-1], 4) == whole


def test_several_sequences_draft_in_one_step(tmp_path: Path, tiny_models: TinyModels) -> None:
    heads = HEADS["first"]
    runner = runner_of(heads, tiny_models, tmp_path)
    texts = {seq_id: TEXT[seq_id : seq_id + 10 + 5 * seq_id] for seq_id in range(3)}
    for seq_id in texts:
        runner.add_sequence(seq_id)
    runner.run(Batch([BatchRow(i, text[:-1], []) for i, text in texts.items()]))
    batch = Batch([BatchRow(i, text[-1:], [GREEDY]) for i, text in texts.items()])
    model = ReferenceDecoder(tiny_models.path("plain"))
    for text, samples in zip(texts.values(), runner.draft(batch).samples, strict=True):
        agree(list(samples), heads.chain(model, text, 1), 1e-4)


def test_a_model_computes_the_same_bits_with_a_head(
    tmp_path: Path, tiny_models: TinyModels
) -> None:
    runner = runner_of(HEADS["third"], tiny_models, tmp_path, "portable")
    plain = tiny_models.runner("plain", "portable")
    assert np.array_equal(runner.logits(TEXT, chunk=7), plain.logits(TEXT, chunk=45))


def test_a_transfer_carries_the_vectors(tmp_path: Path, tiny_models: TinyModels) -> None:
    runner = runner_of(HEADS["third"], tiny_models, tmp_path)
    runner.add_sequence(0)
    runner.run(Batch([BatchRow(0, TEXT[:-1], [])]))
    runner.import_pages(1, runner.export_pages(0), len(TEXT) - 1)
    assert drafted(runner, 1, TEXT[-1], 3) == drafted(runner, 0, TEXT[-1], 3)


def test_a_head_with_all_tokens_needs_no_table(tmp_path: Path, tiny_models: TinyModels) -> None:
    heads = TinyEagle(third=True, rows=300)
    heads.tensors["d2t"][:] = 0
    wanted = heads.chain(ReferenceDecoder(tiny_models.path("plain")), TEXT, 2)
    fewer = {name: one for name, one in heads.tensors.items() if name not in ("d2t", "t2d")}
    bare = replace(heads)
    bare.tensors = fewer
    runner = runner_of(bare, tiny_models, tmp_path)
    runner.add_sequence(0)
    runner.run(Batch([BatchRow(0, TEXT[:-1], [])]))
    agree(drafted(runner, 0, TEXT[-1], 2), wanted, 1e-4)
