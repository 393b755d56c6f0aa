"""Engines of each named precision, what they cost, and `precision="auto"`."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mlc_llm.backends.cpu.target import missing_features
from mlc_llm.backends.registry import backend_of
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import data
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.opening import precision
from mlc_llm.serve.opening.bundle import ModelBundle, open_model
from mlc_llm.serve.precision_costs import PrecisionCost, fastest, read_costs
from mlc_llm.serve.sync_engine import SyncMLCEngine
from mlc_llm.support import content

PROMPTS = ["The cat", "a much longer prompt " * 6, "x", "Hello, world. How are you?"]
GREEDY = GenerationConfig(temperature=0, max_tokens=40)
pytestmark = pytest.mark.usefixtures("tiny")


@pytest.fixture(autouse=True)
def _vnni(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels that have all precisions, whatever would be chosen here."""
    if missing_features("vnni"):
        pytest.skip("no vnni here")
    monkeypatch.setenv("MLC_LLM_KERNELS", "vnni")


@pytest.fixture
def bundle(tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModelBundle:
    """The model; what is measured of it is kept in a file of this test."""
    monkeypatch.setattr(precision, "COSTS_FILE", tmp_path / "precision.json")
    monkeypatch.setattr(precision, "MOST_PIECES", 1)
    monkeypatch.setattr(content, "SETTLED_S", -60.0)  # else a new file's hash is not kept
    read = read_costs
    monkeypatch.setattr(precision, "read_costs", lambda _, key=None: read(tmp_path, key))
    return open_model(str(tiny))


def engine(tiny: Path, **settings: Any) -> SyncMLCEngine:
    return SyncMLCEngine(str(tiny), "cpu", engine_config=EngineConfig(**settings))


def test_a_text_does_not_depend_on_the_company_or_on_chunks(tiny: Path) -> None:
    fast = engine(tiny, precision="fast")
    alone = [fast.generate(prompt, GREEDY)[0][0] for prompt in PROMPTS]
    few = {"max_total_sequence_length": 256, "prefill_chunk_size": 32, "max_num_sequence": 4}
    assert engine(tiny, precision="fast", **few).generate(PROMPTS, GREEDY)[0] == alone


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({}, "exact"),
        ({"prompt_precision": "fast"}, "fast-prompts"),
        ({"precision": "fast"}, "fast"),
    ],
)
def test_usage_and_log_name_the_precision(
    tiny: Path, settings: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one, given = engine(tiny, **settings), list[Any]()
    one._ffi["set_request_stream_callback"](given.extend)
    config = GenerationConfig(max_tokens=1)
    one.add_request(one.create_request("a", data.TextData("x"), config))
    while not given or given[-1].request_final_usage_json_str is None:
        one.step()
    usage = json.loads(given[-1].request_final_usage_json_str)
    assert usage["extra"]["precision"] == name == one.engine_config.precision
    assert f"precision: {name}" in caplog.messages


def test_measured_once_and_then_known(
    bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    costs = precision.costs_of(bundle)
    assert [one.precision for one in costs] == ["exact", "fast-prompts", "fast"]
    assert costs[0].divergence == 0.0 < costs[1].divergence < costs[2].divergence < 0.1
    assert all(one.prompt_tokens_per_s > 0 and one.batch_tokens_per_s > 0 for one in costs)
    monkeypatch.setattr(precision, "create_runner", lambda *_: pytest.fail("measured again"))
    assert precision.costs_of(bundle) == costs == precision.known_costs(bundle)
    stored = json.loads((tmp_path / "precision.json").read_text())
    assert read_costs(tmp_path, stored["key"]) == costs and read_costs(tmp_path, "other") == []


def test_kernels_with_one_way_cost_what_they_cost(bundle: ModelBundle) -> None:
    assert [one.precision for one in precision.costs_of(bundle, "portable")] == ["exact"]


def cost(name: Any, seconds: float, divergence: float) -> PrecisionCost:
    return PrecisionCost(name, 256 / seconds, 64.0, 8.0, divergence)


def test_the_better_speeds_of_two_times_count() -> None:
    """Each by itself; what differs from the exact answers does not depend on the time."""
    first, second = PrecisionCost("fast", 9, 2, 30, 1e-3), PrecisionCost("fast", 8, 3, 31, 5)
    assert first.faster_of(second) == PrecisionCost("fast", 9, 3, 31, 1e-3)


def test_speeds_are_measured_twice(bundle: ModelBundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time in the other order."""
    seen, made = [], precision.create_runner

    def create(given: ModelBundle, config: EngineConfig) -> Any:
        seen.append(config.precision)
        return made(given, config)

    monkeypatch.setattr(precision, "create_runner", create)
    names = [one.precision for one in precision.costs_of(bundle)]
    assert [one for one in seen if one in names] == names + names[::-1]


@pytest.mark.parametrize(
    ("costs", "chosen"),
    [
        (
            [cost("exact", 3, 0), cost("fast-prompts", 2, 1e-4), cost("fast", 1, 2e-4)],
            "fast-prompts",
        ),
        ([cost("exact", 3, 0), cost("fast-prompts", 2, 2e-4), cost("fast", 1, 1e-3)], "exact"),
        ([cost("exact", 1, 0), cost("fast-prompts", 2, 1e-5), cost("fast", 3, 1e-5)], "exact"),
        ([], "exact"),
    ],
)
def test_auto_takes_the_fastest_that_is_near_enough(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, costs: list[PrecisionCost], chosen: str
) -> None:
    monkeypatch.setattr(precision, "costs_of", lambda *_: costs)
    config = precision.with_precision(EngineConfig(precision="auto"), open_model(str(tiny)))
    assert config.precision == chosen
    assert not costs or fastest(costs).precision == chosen


def test_auto_is_not_for_a_library_of_ones_own(tiny: Path) -> None:
    config = EngineConfig(precision="auto", model_lib="somewhere")
    with pytest.raises(InvalidField, match=r"precision = 'auto'.*name it"):
        precision.with_precision(config, open_model(str(tiny)))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"precision": "fast"}, "fast-prompts"),
        ({"precision": "fast", "model_lib": "somewhere"}, "fast"),
        ({"precision": "exact"}, "exact"),
        ({}, "exact"),
    ],
)
def test_fast_where_exact_answers_are_faster(
    tiny: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    given: dict[str, Any],
    found: str,
) -> None:
    kernels = SimpleNamespace(has_fast_answers=False)
    monkeypatch.setattr(precision, "choose_backend", lambda _: kernels)
    config = precision.with_precision(EngineConfig(**given), open_model(str(tiny)))
    assert config.precision == found
    assert ("precision 'fast' is 'fast-prompts' here" in caplog.text) == (found == "fast-prompts")


def test_which_kernels_have_fast_answers(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not backend_of("amx").has_fast_answers
    monkeypatch.setattr(precision, "choose_backend", lambda _: backend_of("vnni"))
    config = EngineConfig(precision="fast")
    assert precision.with_precision(config, open_model(str(tiny))).precision == "fast"


def test_divergence_against_a_plain_sum() -> None:
    rng = np.random.default_rng(3)
    exact, other = rng.normal(size=(2, 5, 7)).astype(np.float32)
    total = 0.0
    for one, two in zip(exact, other, strict=True):
        p, q = np.exp(one) / np.exp(one).sum(), np.exp(two) / np.exp(two).sum()
        total += sum(a * np.log(a / b) for a, b in zip(p, q, strict=True))
    assert precision.divergence([exact], [other]) == pytest.approx(total / 5, rel=1e-5)
