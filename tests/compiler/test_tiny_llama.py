"""Compiled Llamas against a NumPy one, and against themselves in other company."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from decoder_reference import ReferenceDecoder
from tiny_models import VARIANTS, TinyModels

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.backends.registry import REFERENCE
from mlc_llm.runtime.batch import Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.model_runner import ModelRunner

QUICK = {
    "reference": ("plain", "linear-rope", "rope-factors", "mixed-kinds"),
    "portable": (
        "plain",
        "linear-rope",
        "rope-factors",
        "mixed-kinds",
        "keys-and-values-apart",
        "own-head",
    ),
    "amx": ("plain", "mixed-kinds"),
    "vnni-bf16": (),
    "vnni": ("plain", "mixed-kinds"),
    "avx-vnni": ("mixed-kinds",),
    "avx2": ("plain",),
    "i8mm": ("plain", "mixed-kinds"),
    "dotprod": ("plain", "mixed-kinds"),
}
"""Kernels and variants of the default run; the others are slow."""
WORST = {
    "reference": 2e-4,
    "portable": 2e-4,
    "amx": 0.03,
    "vnni-bf16": 0.03,
    "vnni": 0.03,
    "avx-vnni": 0.03,
    "avx2": 0.03,
    "i8mm": 0.03,
    "dotprod": 0.03,
}
"""Largest |difference| of a logit; logits reach 10. float16 pages make almost all of the 0.03
(0.016 was seen); 16-bit activations alone make 0.002."""
MEAN = {
    "reference": 2e-5,
    "portable": 2e-5,
    "amx": 3e-3,
    "vnni-bf16": 3e-3,
    "vnni": 3e-3,
    "avx-vnni": 3e-3,
    "avx2": 3e-3,
    "i8mm": 3e-3,
    "dotprod": 3e-3,
}
WATCH = Sampling(temperature=0, top_logprobs=20)
TOKENS = np.random.default_rng(0).integers(0, 300, 100).tolist()


KERNELS = (*ISAS, REFERENCE)


def needing(isa: str, *more: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    lacking = () if isa == REFERENCE else missing_features(isa)
    return [pytest.mark.skipif(bool(lacking), reason=f"no {', '.join(lacking)} here"), *more]


ALL = [
    pytest.param(
        isa, name, id=f"{isa}-{name}",
        marks=needing(isa, *([] if name in QUICK[isa] else [pytest.mark.slow])),
    )
    for isa in KERNELS
    for name in VARIANTS
]  # fmt: skip
LIKE_OTHERS = ("vnni-bf16", "avx-vnni")
"""Exact ones are those of `vnni`, and but for their products those of `avx2`."""
EACH_ISA = [
    pytest.param(
        isa, id=isa, marks=needing(isa, *([pytest.mark.slow] if isa in LIKE_OTHERS else []))
    )
    for isa in KERNELS
]


@cache
def expected(models: TinyModels, name: str) -> npt.NDArray[np.float64]:
    return ReferenceDecoder(models.path(name)).logits(TOKENS)


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("isa", "name"), ALL)
def test_logits_against_numpy(tiny_models: TinyModels, isa: str, name: str) -> None:
    exact = expected(tiny_models, name)
    logits = tiny_models.runner(name, isa).logits(TOKENS)
    difference = np.abs(logits - exact)
    assert difference.max() <= WORST[isa]
    assert difference.mean() <= MEAN[isa]
    assert np.abs(exact).max() > 5, "a model that says nothing proves nothing"


def test_variants_are_different_models(tiny_models: TinyModels) -> None:
    """Else a scaling that is ignored would pass."""
    plain = expected(tiny_models, "plain")
    for name in ("linear-rope", "rope-factors", "mixed-kinds"):
        assert np.abs(expected(tiny_models, name) - plain).max() > 0.5


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("isa", "name"), ALL)
def test_chunks_do_not_matter(tiny_models: TinyModels, isa: str, name: str) -> None:
    runner = tiny_models.runner(name, isa)
    whole = runner.logits(TOKENS[:64])
    for chunk in (1, 3, 16, 17):
        assert runner.logits(TOKENS[:64], chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


def run(runner: ModelRunner, *rows: tuple[int, list[int]]) -> list[Sampled]:
    """One step; what each sequence says next, with its log-probabilities to the last bit."""
    output = runner.run(Batch([BatchRow(seq_id, tokens, [WATCH]) for seq_id, tokens in rows]))
    runner.check_integrity()
    return [sample for (sample,) in output.samples]


def alone(models: TinyModels, isa: str, tokens: list[int]) -> Sampled:
    """The same for one sequence in a runner of its own."""
    runner = models.runner("plain", isa)
    runner.add_sequence(0)
    return run(runner, (0, tokens))[0]


@pytest.mark.parametrize("isa", EACH_ISA)
def test_company_does_not_matter(tiny_models: TinyModels, isa: str) -> None:
    runner = tiny_models.runner("plain", isa)
    prompts = [TOKENS[:20], TOKENS[30:31], TOKENS[40:73], TOKENS[7:17]]
    for seq_id in range(4):
        runner.add_sequence(seq_id)
    together = run(runner, *enumerate(prompts))
    for prompt, sample in zip(prompts, together, strict=True):
        assert sample == alone(tiny_models, isa, prompt)
    # Three decode, one takes in a longer piece; they are named in another order.
    news = {3: [5], 0: [6], 2: TOKENS[80:98], 1: [7]}
    for seq_id, sample in zip(news, run(runner, *news.items()), strict=True):
        assert sample == alone(tiny_models, isa, prompts[seq_id] + news[seq_id])


@pytest.mark.one_of(3)
@pytest.mark.parametrize("length", [1, 16, 20, 37])
@pytest.mark.parametrize("isa", EACH_ISA)
def test_forks_go_their_own_way(tiny_models: TinyModels, isa: str, length: int) -> None:
    runner = tiny_models.runner("plain", isa)
    prompt = TOKENS[:37]
    runner.add_sequence(0)
    run(runner, (0, prompt))
    runner.fork_sequence(0, 1, length)
    first, second = run(runner, (0, [11, 12]), (1, [13, 14]))
    assert first == alone(tiny_models, isa, [*prompt, 11, 12])
    assert second == alone(tiny_models, isa, [*prompt[:length], 13, 14])
    runner.remove_sequence(0)
    (third,) = run(runner, (1, [15]))
    assert third == alone(tiny_models, isa, [*prompt[:length], 13, 14, 15])


@pytest.mark.one_of(3)
@pytest.mark.parametrize("back", [1, 5, 21, 40])
@pytest.mark.parametrize("isa", EACH_ISA)
def test_rolling_back_forgets(tiny_models: TinyModels, isa: str, back: int) -> None:
    runner = tiny_models.runner("plain", isa)
    runner.add_sequence(0)
    run(runner, (0, TOKENS[:40]))
    runner.fork_sequence(0, 1, 40)
    runner.rollback_sequence(0, back)
    (sample,) = run(runner, (0, TOKENS[60:63]))
    assert sample == alone(tiny_models, isa, TOKENS[: 40 - back] + TOKENS[60:63])
    (other,) = run(runner, (1, [9]))
    assert other == alone(tiny_models, isa, [*TOKENS[:40], 9])


@pytest.mark.parametrize("isa", EACH_ISA)
def test_used_pages_are_as_good_as_new(tiny_models: TinyModels, isa: str) -> None:
    runner = tiny_models.runner("plain", isa, num_pages=4)
    for i in range(3):
        runner.add_sequence(i)
        (sample,) = run(runner, (i, TOKENS[10 * i : 10 * i + 50]))
        assert sample == alone(tiny_models, isa, TOKENS[10 * i : 10 * i + 50])
        runner.remove_sequence(i)
