"""Libraries that compute every token the fast way: near the exact ones, and just as independent."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import TinyModels, run_rows

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.errors import InvalidField
from mlc_llm.runtime.batch import BatchRow, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

TOKENS = np.random.default_rng(1).integers(0, 300, 64).tolist()
WATCH = Sampling(temperature=0, top_logprobs=20)


@pytest.fixture(
    params=[
        pytest.param(("plain", "vnni"), id="plain-vnni", marks=pytest.mark.slow),
        pytest.param(("plain", "avx-vnni"), id="plain-avx-vnni", marks=pytest.mark.slow),
        pytest.param(("plain", "amx"), id="plain-amx"),
        pytest.param(("two-heads", "vnni-bf16"), id="two-heads-vnni-bf16"),
        pytest.param(("bfloat16", "vnni-bf16"), id="bfloat16-vnni-bf16", marks=pytest.mark.slow),
        pytest.param(("floats", "vnni-bf16"), id="floats-vnni-bf16", marks=pytest.mark.slow),
    ]
)
def names(request: pytest.FixtureRequest) -> tuple[str, str]:
    model, isa_name = request.param
    if missing_features(isa_name):
        pytest.skip(f"no {isa_name} here")
    return model, isa_name


@pytest.fixture
def runner(tiny_models: TinyModels, names: tuple[str, str]) -> ModelRunner:
    return tiny_models.runner(*names, precision="fast")


def test_near_the_exact_logits_and_not_equal(
    tiny_models: TinyModels, runner: ModelRunner, names: tuple[str, str]
) -> None:
    exact = tiny_models.runner(*names).logits(TOKENS)
    difference = np.abs(runner.logits(TOKENS) - exact).max(axis=1)
    assert (difference > 0).all()
    # Of one token of the second model `vnni` is off by 1.3 too.
    assert np.sort(difference)[-2] < 0.6
    assert np.abs(exact).max() > 5


def test_neither_chunks_nor_prompts_matter(runner: ModelRunner) -> None:
    """So a text does not depend on which of its tokens were a prompt."""
    whole = runner.logits(TOKENS)
    for chunk in (1, 3, 16, 17):
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    assert runner.logits(TOKENS, prompt_tokens=40).tobytes() == whole.tobytes()


def test_company_does_not_matter(runner: ModelRunner) -> None:
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


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("name", "isa"), [("plain", "portable"), ("floats", "vnni"), ("plain", "avx2")]
)
def test_kernels_without_a_faster_way_refuse(tiny_models: TinyModels, name: str, isa: str) -> None:
    if missing_features(isa):
        pytest.skip(f"no {isa} here")
    with pytest.raises(InvalidField, match=rf"precision = 'fast'.*{isa} kernels.*'exact'"):
        tiny_models.runner(name, isa, precision="fast")


@pytest.mark.slow
def test_libraries_for_one_precision_refuse_another(tiny_models: TinyModels) -> None:
    if missing_features("vnni"):
        pytest.skip("no vnni here")
    limits = {"num_pages": 24, "max_num_sequence": 4, "max_batch_tokens": 64, "context_window": 512}
    weights = tiny_models.weights("plain", "vnni")
    fast = tiny_models.library("plain", "vnni", precision="fast")
    with pytest.raises(InvalidField, match=r"precision = 'exact'.*every token"):
        ModelRunner(fast, weights, **limits)
    exact = tiny_models.library("plain", "vnni")
    with pytest.raises(InvalidField, match=r"precision = 'fast'.*vnni kernels.*'exact'"):
        ModelRunner(exact, weights, precision="fast", **limits)
