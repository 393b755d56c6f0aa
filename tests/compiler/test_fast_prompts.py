"""Prompts that are computed the fast way: near the exact ones, and just as independent."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TinyModels, run_rows

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

TOKENS = np.random.default_rng(1).integers(0, 300, 120).tolist()
WATCH = Sampling(temperature=0, top_logprobs=20)


@pytest.fixture(
    params=[
        pytest.param(("plain", "vnni"), id="plain-vnni"),
        pytest.param(("plain", "avx-vnni"), id="plain-avx-vnni", marks=pytest.mark.slow),
        pytest.param(("plain", "amx"), id="plain-amx", marks=pytest.mark.slow),
        pytest.param(("two-heads", "amx"), id="two-heads-amx"),
        pytest.param(("two-heads", "vnni-bf16"), id="two-heads-vnni-bf16"),
        pytest.param(("bfloat16", "vnni-bf16"), id="bfloat16-vnni-bf16", marks=pytest.mark.slow),
        pytest.param(("floats", "vnni-bf16"), id="floats-vnni-bf16", marks=pytest.mark.slow),
    ]
)
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    """Model and kernels: products to 8 bits; in bfloat16; attention in bfloat16 too."""
    model, isa_name = request.param
    if missing_features(isa_name):
        pytest.skip(f"no {isa_name} here")
    return model, isa_name


@pytest.fixture
def runner(tiny_models: TinyModels, names: tuple[str, str]) -> ModelRunner:
    return tiny_models.runner(*names, precision="fast-prompts")


def row(seq_id: int, tokens: list[int], prompt_tokens: int = 0) -> BatchRow:
    return BatchRow(seq_id, tokens, [WATCH], prompt_tokens)


def sequence(runner: ModelRunner, prompt: list[int], *answer: int) -> Sampled:
    """What follows a prompt and an answer that came token by token."""
    runner.reset()
    runner.add_sequence(0)
    (sample,) = run_rows(runner, row(0, prompt, len(prompt)))
    for token in answer:
        (sample,) = run_rows(runner, row(0, [token]))
    return sample


def test_near_the_exact_logits_and_not_equal(
    tiny_models: TinyModels, runner: ModelRunner, names: tuple[str, str]
) -> None:
    exact = tiny_models.runner(*names).logits(TOKENS[:64])
    assert runner.logits(TOKENS[:64]).tobytes() == exact.tobytes()
    fast = runner.logits(TOKENS[:64], prompt_tokens=64)
    difference = np.abs(fast - exact).max(axis=1)
    assert (difference > 0).all()
    assert difference.max() < 0.5
    assert np.abs(exact).max() > 5


def test_chunks_do_not_matter(runner: ModelRunner) -> None:
    whole = runner.logits(TOKENS[:64], prompt_tokens=40)
    for chunk in (1, 3, 16, 17):
        again = runner.logits(TOKENS[:64], chunk=chunk, prompt_tokens=40)
        assert again.tobytes() == whole.tobytes(), f"by {chunk}"


def test_company_does_not_matter(runner: ModelRunner) -> None:
    first = sequence(runner, TOKENS[:20], 5)
    second, third = sequence(runner, TOKENS[30:33]), sequence(runner, TOKENS[40:63], 9, 8)
    runner.reset()
    for seq_id in range(3):
        runner.add_sequence(seq_id)
    run_rows(runner, row(0, TOKENS[:20], 20))
    # One decodes, one is a prompt, one comes back with a part of its answer, as if preempted.
    rows = [row(0, [5]), row(1, TOKENS[30:33], 3), row(2, [*TOKENS[40:63], 9, 8], 23)]
    assert run_rows(runner, *rows) == [first, second, third]
    runner.rollback_sequence(2, 25)
    assert run_rows(runner, rows[2]) == [third]


def test_too_few_pages_for_both_parts_of_a_row(runner: ModelRunner) -> None:
    runner.add_sequence(0)
    for _ in range(5):
        runner.run(Batch([BatchRow(0, TOKENS[:64], [], 64)]))
    runner.run(Batch([BatchRow(0, TOKENS[:32], [], 20)]))
    assert runner.free_pages == 2
    with pytest.raises(RequestError, match="3 KV pages needed, 2 are free"):
        runner.run(Batch([BatchRow(0, TOKENS[:33], [], 16)]))
    runner.check_integrity()
    assert runner.free_pages == 2


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("name", "isa"), [("plain", "portable"), ("floats", "vnni"), ("plain", "avx2")]
)
def test_kernels_without_a_faster_way_refuse(tiny_models: TinyModels, name: str, isa: str) -> None:
    if missing_features(isa):
        pytest.skip(f"no {isa} here")
    with pytest.raises(InvalidField, match=rf"precision.*{isa} kernels.*'exact'"):
        tiny_models.runner(name, isa, precision="fast-prompts")


def test_a_library_for_exact_prompts_refuses(tiny_models: TinyModels) -> None:
    if missing_features("amx"):
        pytest.skip("no amx here")
    folders = tiny_models.library("plain", "amx"), tiny_models.weights("plain", "amx")
    limits = {"max_num_sequence": 4, "max_batch_tokens": 64, "context_window": 512}
    with pytest.raises(InvalidField, match=r"precision.*amx kernels.*'exact'"):
        ModelRunner(*folders, num_pages=24, precision="fast-prompts", **limits)
