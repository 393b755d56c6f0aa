"""Speculative decoding on the tiny model, through compiled code: the same bytes as without."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_reference import ReferenceDecoder
from eager_drafts import draft_always, opened
from tiny_eagle import TinyEagle
from tiny_heads import TinyMedusa

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import limits
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening import open_engine
from mlc_llm.serve.opening.bundle import open_model, open_models, parse_models
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.testing.byte_tokenizer import VOCABULARY_SIZE
from mlc_llm.testing.tiny_model import TinyShape, write_tiny_model

pytestmark = pytest.mark.usefixtures("tiny")
NARROW: dict[str, Any] = {
    "max_total_sequence_length": 256,
    "prefill_chunk_size": 32,
    "max_num_sequence": 4,
}
"""Few pages and short chunks, so that prompts are cut and sequences preempted."""
PROMPTS = ["The cat", "a much longer prompt " * 6, "x", "Hello, world. How are you?", "abcabcabcab"]
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "name": {"type": "string", "maxLength": 20}},
    "required": ["x", "name"],
}
# The seeds are ones with which some text repeats itself, so that it can be drafted from.
CONFIGS = {
    "greedy": GenerationConfig(temperature=0, max_tokens=32),
    "sequences": GenerationConfig(temperature=1.0, seed=3, max_tokens=32, n=3),
    "penalties": GenerationConfig(
        temperature=0.8,
        top_p=0.9,
        seed=16,
        max_tokens=40,
        presence_penalty=0.5,
        frequency_penalty=0.3,
        repetition_penalty=1.2,
    ),
    "cold": GenerationConfig(temperature=0.2, top_k=5, min_p=0.02, seed=5, max_tokens=32),
    "logprobs": GenerationConfig(
        temperature=1.0, seed=28, max_tokens=20, logprobs=True, top_logprobs=3
    ),
    "stops": GenerationConfig(temperature=1.0, seed=7, max_tokens=32, stop_strs=["e", "0"]),
    "grammar": GenerationConfig(
        temperature=1.0,
        seed=8,
        max_tokens=40,
        response_format={"type": "json_object", "schema": json.dumps(POINT)},
    ),
}


@pytest.fixture(scope="module")
def models(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The model, a smaller and different one, and heads."""
    small = TinyShape(layers=1, hidden=32, intermediate=32)
    folder = tmp_path_factory.mktemp("models")
    return {
        "model": str(tiny),
        "small": str(write_tiny_model(folder / "small.gguf", shape=small)),
        "medusa": str(TinyMedusa(vocab=VOCABULARY_SIZE).write(folder / "heads")),
        "eagle": str(TinyEagle(vocab=VOCABULARY_SIZE).write(folder / "eagle")),
        "eagle3": str(TinyEagle(third=True, vocab=VOCABULARY_SIZE).write(folder / "eagle3")),
    }


DRAFTERS = ("prompt_lookup", "model", "small", "medusa", "eagle", "eagle3")


class Opened:
    """An engine and the core inside it."""

    def __init__(self, model: str, config: EngineConfig, *, is_eager: bool = True) -> None:
        self.engine, self.core = opened(model, config)
        if is_eager:
            draft_always(self.core, 5)

    def ask(self, config: GenerationConfig, *, together: bool) -> Any:
        found = []
        for prompts in [PROMPTS] if together else [[one] for one in PROMPTS]:
            texts, logprobs = self.engine.generate(prompts, config)
            found += list(zip(texts, logprobs, strict=True))
            self.core.check_integrity()
        return found

    def spec(self) -> tuple[int, int]:
        """(draft tokens, accepted ones)"""
        spec = self.engine.metrics().metrics.get("spec_decode", {})
        return sum(spec.get("draft_count", [])), sum(spec.get("accept_count", []))


def config_of(mode: str, models: dict[str, str], **limits: Any) -> EngineConfig:
    """With kernels that compile soonest: drafts are the same to all of them."""
    if mode in ("model", "small"):
        limits |= {"additional_models": [models[mode]]}
        mode = "small_draft"
    if mode in ("medusa", "eagle", "eagle3"):
        limits |= {"additional_models": [models[mode]]}
        mode = mode.removesuffix("3")
    return EngineConfig.from_mapping({"speculative_mode": mode, "kernels": "portable", **limits})


@pytest.fixture(scope="module")
def plain(models: dict[str, str]) -> Opened:
    return Opened(models["model"], EngineConfig(kernels="portable"))


@dataclass
class Eager:
    """Engines that draft in every step they can: one with much room, one that is narrow."""

    wide: Opened
    narrow: Opened


@pytest.fixture(scope="module", params=[*DRAFTERS])
def eager(request: pytest.FixtureRequest, models: dict[str, str]) -> Eager:
    opened = (
        Opened(models["model"], config_of(request.param, models, **limits))
        for limits in ({}, NARROW)
    )
    return Eager(*opened)


@pytest.fixture(scope="module")
def expected(plain: Opened) -> dict[str, Any]:
    return {name: plain.ask(config, together=False) for name, config in CONFIGS.items()}


@pytest.mark.one_of(14)
@pytest.mark.parametrize("name", CONFIGS)
def test_the_same_answers(expected: dict[str, Any], eager: Eager, name: str) -> None:
    config, before = CONFIGS[name], eager.wide.spec()[0]
    assert eager.wide.ask(config, together=True) == expected[name]
    assert eager.wide.ask(config, together=False) == expected[name], "with prefixes in the cache"
    assert eager.wide.spec()[0] > before
    assert eager.narrow.ask(config, together=True) == expected[name]


@pytest.mark.one_of(3)
def test_the_narrow_engine_preempts_and_drafts(eager: Eager) -> None:
    # It asks for itself: other tests may run in another process.
    for config in CONFIGS.values():
        eager.narrow.ask(config, together=True)
    assert eager.narrow.core.num_preemptions > 0 and eager.narrow.spec()[0] > 0


@pytest.mark.parametrize("kernels", [None, "portable"], ids=["machine", "portable"])
def test_a_model_that_drafts_for_itself_is_always_right(
    models: dict[str, str], kernels: str | None
) -> None:
    opened = Opened(models["model"], config_of("model", models, kernels=kernels))
    for name in ("greedy", "sequences", "cold"):
        opened.ask(CONFIGS[name], together=True)
    num_drafted, accepted = opened.spec()
    assert num_drafted > 300 and accepted == num_drafted


@pytest.mark.parametrize("mode", ["prompt_lookup", "model"])
def test_the_same_answers_on_the_kernels_of_this_machine(models: dict[str, str], mode: str) -> None:
    plain = Opened(models["model"], EngineConfig())
    drafting = Opened(models["model"], config_of(mode, models, kernels=None))
    for name in ("greedy", "penalties"):
        expected = plain.ask(CONFIGS[name], together=False)
        assert drafting.ask(CONFIGS[name], together=True) == expected
    assert drafting.spec()[0] > 0


def test_what_a_metric_says(models: dict[str, str]) -> None:
    opened = Opened(models["model"], config_of("model", models))
    opened.ask(CONFIGS["greedy"], together=False)
    metrics = opened.engine.metrics()
    assert metrics["spec_decode"]["accept_prob"]["accept_prob{step=0}"] == 1.0
    assert 'spec_decode_draft_count{step="4"}' in metrics.prometheus_text()
    # The first token of an answer is the prompt's.
    assert metrics["decode_tokens_sum"] == metrics["completion_tokens_sum"] - len(PROMPTS)


def test_the_same_answers_when_the_clock_decides(models: dict[str, str], plain: Opened) -> None:
    config = config_of("model", models, spec_draft_length=4)
    opened = Opened(models["model"], config, is_eager=False)
    wanted = GenerationConfig(temperature=0, max_tokens=300)
    texts = [opened.engine.generate("The cat", wanted)[0] for _ in range(3)]
    assert texts == [plain.engine.generate("The cat", wanted)[0]] * 3


def test_a_draft_model_with_other_tokens_is_refused(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = iter([300, 256])
    measured = open_engine.model_size

    def other(bundle: Any, *kinds: Any) -> Any:
        return replace(measured(bundle, *kinds), vocab_size=next(sizes))

    monkeypatch.setattr(open_engine, "model_size", other)
    with pytest.raises(InvalidField, match="has 256 tokens and the model 300") as caught:
        SyncMLCEngine(models["model"], engine_config=config_of("small", models))
    assert caught.value.field == "additional_models"


@pytest.mark.parametrize(
    ("heads", "words"),
    [
        (TinyMedusa(hidden=32, vocab=VOCABULARY_SIZE), "of 32 numbers and the model's have 64"),
        (TinyMedusa(vocab=100), "it has 100 tokens and the model"),
    ],
)
def test_heads_of_another_model_are_refused(
    models: dict[str, str], heads: TinyMedusa, words: str, tmp_path: Path
) -> None:
    wrong = config_of("medusa", {"medusa": str(heads.write(tmp_path / "heads"))})
    with pytest.raises(InvalidField, match=words) as caught:
        SyncMLCEngine(models["model"], engine_config=wrong)
    assert caught.value.field == "additional_models"


def test_heads_draft_what_numpy_does(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their vectors are those of the text that the model has read."""
    opened = Opened(models["model"], config_of("medusa", models))
    seen: list[tuple[int, Any, list[int]]] = []
    assert opened.core._steps.speculator is not None
    heads: Any = opened.core._steps.speculator._drafter._heads  # type: ignore[attr-defined]
    sample = heads.sample

    def watched(head: int, hidden: Any, samplings: Any) -> Any:
        found = sample(head, hidden, samplings)
        seen.append((head, np.array(hidden, np.float32), [one.token_id for one in found]))
        return found

    monkeypatch.setattr(heads, "sample", watched)
    opened.ask(CONFIGS["greedy"], together=True)
    assert {head for head, _, _ in seen} == {0, 1, 2}
    wanted = TinyMedusa(vocab=VOCABULARY_SIZE)
    for head, hidden, tokens in seen:
        assert wanted.logits(head, hidden).argmax(1).tolist() == tokens


@pytest.mark.parametrize("mode", ["eagle", "eagle3"])
def test_an_eagle_head_drafts_what_numpy_does(
    models: dict[str, str], monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """It has the vectors of the whole text, also of a prefix that another request has computed."""
    opened = Opened(models["model"], config_of(mode, models, kernels="reference"))
    assert opened.core._steps.speculator is not None
    drafter: Any = opened.core._steps.speculator._drafter
    seen: list[tuple[list[int], list[int]]] = []
    draft = drafter.draft

    def watched(drafts: Any, lengths: Any) -> None:
        draft(drafts, lengths)
        seen.extend((one.sequence.tokens(0, one.sequence.known), one.token_ids) for one in drafts)

    monkeypatch.setattr(drafter, "draft", watched)
    config = GenerationConfig(temperature=0, max_tokens=6)
    for prompt in ("a much longer prompt of twenty words or so", "a much longer prompt that ends"):
        opened.engine.generate(prompt, config)
    heads = TinyEagle(third=mode == "eagle3", vocab=VOCABULARY_SIZE)
    reference = ReferenceDecoder(Path(models["model"]))
    assert len(seen) >= 4
    for text, tokens in seen:
        chain = heads.chain(reference, text, len(tokens))
        assert [int(one.argmax()) for one in chain] == tokens


def test_the_memory_of_an_eagle_head_is_planned(models: dict[str, str]) -> None:
    """Its weights, its keys and values, and a vector for each token."""
    alone = open_engine.model_size(open_model(models["model"]))
    infos = parse_models(models["model"], None, [models["eagle"]])
    (bundle,) = open_models(infos, drafter="eagle")
    size = open_engine.model_size(bundle)
    assert size.weight_bytes > alone.weight_bytes
    assert size.kv_bytes_per_token > alone.kv_bytes_per_token


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"adapters": {"a": "b"}}, "not together with speculative_mode 'eagle'"),
        ({"max_adapters": 2}, "max_adapters|adapters.*not together with speculative_mode"),
        ({"tensor_parallel_shards": 2}, "tensor_parallel_shards.*not together with speculative"),
        ({"kv_cache_dtype": "int8"}, "kv_cache_dtype.*not together with speculative_mode"),
        ({"model_lib": "lib"}, "are compiled together"),
        ({"sliding_window_size": 64}, "not together with speculative_mode"),
    ],
)
def test_what_an_eagle_head_does_not_go_with(
    models: dict[str, str], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidField, match=words):
        SyncMLCEngine(models["model"], engine_config=config_of("eagle", models, **fields))


def test_a_draft_model_may_have_other_rows_behind_its_tokens(
    models: dict[str, str], plain: Opened, tmp_path: Path
) -> None:
    """Neither is ever asked for what only the other has."""
    paths = {
        "model": tmp_path / "padded.gguf",
        "small": tmp_path / "small.gguf",
    }
    write_tiny_model(paths["model"], shape=TinyShape(padding=20))
    write_tiny_model(
        paths["small"], shape=TinyShape(layers=1, hidden=32, intermediate=32, padding=35)
    )
    drafting = {name: str(path) for name, path in paths.items()}
    opened = Opened(drafting["model"], config_of("small", drafting))
    wanted = GenerationConfig(temperature=1.0, seed=4, max_tokens=40)
    assert opened.engine.generate("The cat", wanted) == plain.engine.generate("The cat", wanted)


def test_the_echo_engine_drafts_from_its_prompt() -> None:
    config = EngineConfig(speculative_mode="prompt_lookup")
    engine = SyncMLCEngine("mock://echo", engine_config=config)
    texts, _ = engine.generate(["abc abc abc", "x"], GenerationConfig(n=2))
    assert texts == [["abc abc abc"] * 2, ["x"] * 2]
    wrong = config_of("small", {"small": "m"})
    with pytest.raises(InvalidField, match="speculative_mode"):
        SyncMLCEngine("mock://echo", engine_config=wrong)


def test_a_draft_model_is_in_the_memory_plan(models: dict[str, str]) -> None:
    """It takes weights, and as many pages as the model: so fewer tokens fit."""
    bundles = [open_model(models[name]) for name in ("model", "small")]
    size, draft = map(open_engine.model_size, bundles)
    both = replace(size, draft=draft)
    free = 200 * 2**20
    config = EngineConfig(mode="server")
    _, alone = limits.complete_config(config, size, free)
    _, plan = limits.complete_config(config, both, free)
    assert plan.draft > draft.weight_bytes > 0 == alone.draft
    assert plan.kv_per_token == size.kv_bytes_per_token + draft.kv_bytes_per_token
    assert plan.fit < alone.fit
    assert "draft model" in plan.describe() and "draft" not in alone.describe()
