"""A model with LoRA adapters, each of which is the merged model, token by token."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from adapter_files import config_of, peft_tensors, random_pairs, write_lora_gguf, write_peft
from decoder_reference import ReferenceDecoder
from tiny_models import VARIANTS, TinyModels

from mlc_llm.backends.cpu.isa import ISAS
from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.backends.registry import REFERENCE
from mlc_llm.conversion.convert import convert_weight
from mlc_llm.errors import InvalidField
from mlc_llm.model_files.adapters import changes_of, merged, open_adapter, parts_of
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.runtime.batch import NO_ADAPTER, Batch, BatchRow, Sampled, Sampling
from mlc_llm.runtime.fast_tokens import prompts_first
from mlc_llm.runtime.limits import AdapterLimits
from mlc_llm.runtime.model_runner import ModelRunner
from mlc_llm.support.progress import no_progress

QUICK = {
    ("reference", "plain"),
    ("reference", "mixed-kinds"),
    ("portable", "plain"),
    ("amx", "plain"),
}
WORST, HALF_WORST = 2e-4, 0.05
"""Largest |difference| of a logit; with pages of float16, which make nearly all of it."""
LIMITS = AdapterLimits(3, 16)
TOKENS = np.random.default_rng(0).integers(0, 300, 60).tolist()
WATCH = Sampling(temperature=0, top_logprobs=20)


def needing(isa: str, *more: pytest.MarkDecorator) -> list[pytest.MarkDecorator]:
    lacking = () if isa == REFERENCE else missing_features(isa)
    return [pytest.mark.skipif(bool(lacking), reason=f"no {', '.join(lacking)} here"), *more]


EACH = [
    pytest.param(
        isa, name, id=f"{isa}-{name}",
        marks=needing(isa, *([] if (isa, name) in QUICK else [pytest.mark.slow])),
    )
    for isa in (*ISAS, REFERENCE)
    for name in ("plain", "mixed-kinds", "own-head", "floats")
]  # fmt: skip
PLAIN = [one for one in EACH if one.values[1] == "plain"]


@cache
def adapters(models: TinyModels, name: str) -> tuple[Path, Path]:
    """One of all matrices in a GGUF file, and one of some matrices and of several ranks."""
    shape, folder = VARIANTS[name].shape, models.path(name).parent
    pairs = random_pairs(shape, 1, strength=0.5)
    whole = write_lora_gguf(folder / f"{name}-lora.gguf", pairs, shape)
    some = random_pairs(shape, 2, rank=9, targets=("attn_v", "ffn_down"), strength=0.5)
    some |= random_pairs(shape, 3, targets=("attn_q",), strength=0.5)
    config = config_of(rank_pattern={"v_proj": 9, "down_proj": 9})
    return whole, write_peft(folder / f"{name}-peft", peft_tensors(some), config)


@cache
def expected(models: TinyModels, name: str, adapter: int) -> npt.NDArray[np.float64]:
    """The logits of the model into which an adapter is merged."""
    if adapter == NO_ADAPTER:
        return ReferenceDecoder(models.path(name)).logits(TOKENS)
    path = models.path(name).with_name(f"{name}-{adapter}.gguf")
    source = open_adapter(str(adapters(models, name)[adapter]))
    both = merged(GGUFModel.open(models.path(name)), source)
    convert_weight(both, "f32", path, no_progress)
    return ReferenceDecoder(path).logits(TOKENS)


def adapted(models: TinyModels, name: str, isa: str) -> ModelRunner:
    """A runner with an adapter in slot 0 and another one in slot 1."""
    runner, files = models.runner(name, isa, adapters=LIMITS), GGUFModel.open(models.path(name))
    for slot, path in enumerate(adapters(models, name)):
        changes = changes_of(files, open_adapter(str(path)))
        runner.load_adapter(slot, parts_of(files.plan(), changes))
    return runner


@pytest.mark.one_of(3)
@pytest.mark.parametrize(("isa", "name"), EACH)
def test_an_adapter_is_the_merged_model(tiny_models: TinyModels, isa: str, name: str) -> None:
    runner = adapted(tiny_models, name, isa)
    for slot in (0, 1):
        exact = expected(tiny_models, name, slot)
        difference = np.abs(runner.logits(TOKENS, adapter=slot) - exact).max()
        assert difference <= (WORST if isa in ("portable", REFERENCE) else HALF_WORST)
        apart = np.abs(exact - expected(tiny_models, name, NO_ADAPTER)).max()
        assert apart > 1, "an adapter that changes nothing proves nothing"


@pytest.mark.parametrize(("isa", "name"), EACH)
def test_without_an_adapter_no_bit_changes(tiny_models: TinyModels, isa: str, name: str) -> None:
    plain = tiny_models.runner(name, isa).logits(TOKENS)
    assert adapted(tiny_models, name, isa).logits(TOKENS).tobytes() == plain.tobytes()


@pytest.mark.parametrize(("isa", "name"), PLAIN)
def test_chunks_do_not_matter(tiny_models: TinyModels, isa: str, name: str) -> None:
    runner = adapted(tiny_models, name, isa)
    whole = runner.logits(TOKENS, adapter=1)
    for chunk in (1, 7):
        assert runner.logits(TOKENS, chunk=chunk, adapter=1).tobytes() == whole.tobytes(), chunk


@pytest.mark.parametrize(("isa", "name"), PLAIN)
def test_company_does_not_matter(tiny_models: TinyModels, isa: str, name: str) -> None:
    """Rows of several adapters in one step, and one without."""
    runner = adapted(tiny_models, name, isa)
    prompts, owners = [TOKENS[:20], TOKENS[30:31], TOKENS[:20], TOKENS[7:17]], [0, 1, NO_ADAPTER, 1]

    def run(which: list[int], tokens: list[list[int]]) -> list[Sampled]:
        rows = [BatchRow(i, tokens[i], [WATCH], adapter=owners[i]) for i in which]
        return [sample for (sample,) in runner.run(Batch(rows)).samples]

    def stories(groups: list[list[int]]) -> dict[int, list[Sampled]]:
        runner.reset()
        found: dict[int, list[Sampled]] = {i: [] for i in range(4)}
        for group in groups:
            for i in group:
                runner.add_sequence(i)
            for tokens in (prompts, [[5], [6], [7], [8]]):
                for i, sample in zip(group, run(group, tokens), strict=True):
                    found[i].append(sample)
        return found

    assert stories([[0, 1, 2, 3]]) == stories([[0], [1], [2], [3]])


def test_a_slot_is_used_again(tiny_models: TinyModels) -> None:
    runner = adapted(tiny_models, "plain", "portable")
    first, second = (runner.logits(TOKENS, adapter=slot) for slot in (0, 1))
    files = GGUFModel.open(tiny_models.path("plain"))
    path = adapters(tiny_models, "plain")[1]
    parts = parts_of(files.plan(), changes_of(files, open_adapter(str(path))))
    runner.load_adapter(0, parts)
    assert runner.logits(TOKENS, adapter=0).tobytes() == second.tobytes() != first.tobytes()
    runner.load_adapter(0, {})
    plain = tiny_models.runner("plain", "portable").logits(TOKENS)
    assert runner.logits(TOKENS, adapter=0).tobytes() == plain.tobytes()


def test_prompts_that_are_computed_first_keep_their_adapter() -> None:
    rows = [BatchRow(0, [1, 2, 3], [], 2, adapter=4), BatchRow(1, [4, 5], [], 1)]
    parts, _ = prompts_first(rows, [])
    assert [(row.seq_id, row.adapter) for row in parts] == [(0, 4), (1, -1), (0, 4), (1, -1)]


def test_a_library_is_for_adapters_or_without(tiny_models: TinyModels) -> None:
    library, weights = (
        tiny_models.library("plain", "portable"),
        tiny_models.weights("plain", "portable"),
    )
    with pytest.raises(InvalidField, match="this library is one without adapters"):
        ModelRunner(
            library, weights, num_pages=4, max_num_sequence=1, max_batch_tokens=8,
            context_window=64, adapters=LIMITS,
        )  # fmt: skip
