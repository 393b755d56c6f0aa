"""Models whose KV pages hold bytes: near the exact ones, and just as independent."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TinyModels, run_rows

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.errors import InvalidField, TransferRefused
from mlc_llm.runtime.batch import BatchRow, Sampling
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner

TOKENS = np.random.default_rng(1).integers(0, 300, 64).tolist()
WATCH = Sampling(temperature=0, top_logprobs=20)
KERNELS = [
    pytest.param("vnni", id="vnni"),
    pytest.param("portable", id="portable"),
    pytest.param("avx2", id="avx2", marks=pytest.mark.slow),
    pytest.param("amx", id="amx", marks=pytest.mark.slow),
]


@pytest.fixture(params=KERNELS)
def runner(tiny_models: TinyModels, request: pytest.FixtureRequest) -> ModelRunner:
    if missing_features(request.param):
        pytest.skip(f"no {request.param} here")
    return tiny_models.runner("plain", request.param, kv_cache="int8")


@pytest.mark.slow
def test_the_reference_kernels_agree(tiny_models: TinyModels, runner: ModelRunner) -> None:
    """What is left between them is what exact pages leave, and an element whose whole number
    is the neighbour of the other one's."""
    expected = tiny_models.runner("plain", "reference", kv_cache="int8").logits(TOKENS)
    plain = tiny_models.runner("plain", "reference").logits(TOKENS)
    found = runner.logits(TOKENS)
    cost = np.abs(expected - plain)
    assert (cost.max(axis=1)[1:] > 0).all() and 1e-3 < cost.max() < 0.5
    assert np.abs(found - expected).mean() < 0.5 * cost.mean()


@pytest.mark.one_of(2)
def test_neither_chunks_nor_company_matter(runner: ModelRunner) -> None:
    whole = runner.logits(TOKENS)
    for chunk in (1, 3, 16, 17):
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    prompts = TOKENS[:20], TOKENS[30:33], TOKENS[40:63]
    alone = []
    for prompt in prompts:
        runner.reset()
        runner.add_sequence(0)
        alone += run_rows(runner, BatchRow(0, prompt, [WATCH], len(prompt)))
    runner.reset()
    for seq_id in range(3):
        runner.add_sequence(seq_id)
    rows = [BatchRow(i, one, [WATCH], len(one)) for i, one in enumerate(prompts)]
    assert run_rows(runner, *rows) == alone


def decoded(runner: ModelRunner, seq_id: int, count: int) -> list[object]:
    found, token = [], 7
    for _ in range(count):
        (one,) = run_rows(runner, BatchRow(seq_id, [token], [WATCH]))
        found.append((one.token_id, one.logprob, one.top))
        token = one.token_id
    return found


@pytest.mark.one_of(2)
@pytest.mark.parametrize("window", [None, Window(20, 3)], ids=["whole", "window"])
def test_forks_rollbacks_and_transfers(tiny_models: TinyModels, window: Window | None) -> None:
    first, second = (
        tiny_models.runner("plain", "portable", kv_cache="int8", window=window) for _ in range(2)
    )
    first.add_sequence(0)
    run_rows(first, BatchRow(0, TOKENS[:45], ()))
    first.fork_sequence(0, 1, 45)
    transfer = first.export_pages(0)
    assert {one.dtype for one in transfer.tensors} == {np.dtype(np.int8)}
    second.import_pages(5, transfer, 45)
    expected = decoded(first, 0, 6)
    assert decoded(first, 1, 6) == expected
    assert decoded(second, 5, 6) == expected
    if window is None:
        first.rollback_sequence(1, 6)
        assert decoded(first, 1, 6) == expected


def test_pages_of_another_kind_are_refused(tiny_models: TinyModels) -> None:
    exact, of_bytes = (
        tiny_models.runner("plain", "portable", kv_cache=kind) for kind in ("auto", "int8")
    )
    exact.add_sequence(0)
    run_rows(exact, BatchRow(0, TOKENS[:20], ()))
    with pytest.raises(TransferRefused, match="another model or another version"):
        of_bytes.import_pages(0, exact.export_pages(0), 20)
    library = tiny_models.library("plain", "portable")
    with pytest.raises(InvalidField, match=r"kv_cache_dtype = 'int8'.*pages of float32"):
        ModelRunner(
            library,
            tiny_models.weights("plain", "portable"),
            num_pages=8,
            max_num_sequence=1,
            max_batch_tokens=16,
            context_window=64,
            kv_cache="int8",
        )
