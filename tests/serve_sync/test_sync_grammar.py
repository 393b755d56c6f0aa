"""Structured output of `SyncMLCEngine` on the default model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import EngineConfig, SyncMLCEngine

pytestmark = pytest.mark.model

CITY = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 30},
        "country": {"type": "string", "maxLength": 30},
        "inhabitants": {"type": "integer", "minimum": 0, "maximum": 10**8},
        "on the sea": {"type": "boolean"},
    },
    "required": ["name", "country", "inhabitants", "on the sea"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(default_model: Path) -> SyncMLCEngine:
    limits = EngineConfig(max_total_sequence_length=2048, max_single_sequence_length=512)
    return SyncMLCEngine(str(default_model), "cpu", engine_config=limits)


def city(**more: Any) -> GenerationConfig:
    wanted = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    return GenerationConfig(response_format=wanted, max_tokens=128, **more)


@pytest.mark.parametrize("mode", ["jump_forward", "constraint"])
def test_a_schema_holds_beside_free_text(engine: SyncMLCEngine, mode: str) -> None:
    debug = {"grammar_execution_mode": mode}
    prompts = ["Describe Paris as JSON."] * 3
    configs = [
        city(temperature=0, debug_config=debug),
        city(temperature=1.0, seed=1, debug_config=debug),
        GenerationConfig(temperature=0, max_tokens=24),
    ]
    (greedy,), (drawn,), (free,) = engine.generate(prompts, configs)[0]
    for text in (greedy, drawn):
        found = json.loads(text)
        assert found.keys() == CITY["properties"].keys()
        assert isinstance(found["on the sea"], bool) and found["inhabitants"] >= 0
    alone = engine.generate(prompts[2], configs[2])[0]
    assert alone == [[free]]


def test_any_object_parses_or_is_cut(engine: SyncMLCEngine) -> None:
    config = GenerationConfig(
        response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    text = engine.generate("A JSON object with the keys a and b:", config)[0][0][0]
    assert text.startswith("{")
    if text.endswith("}"):
        assert isinstance(json.loads(text), dict)


def test_a_regex_holds(engine: SyncMLCEngine) -> None:
    grammar = {"syntax": "regex", "definition": r"\d{4}-\d{2}-\d{2}"}
    config = GenerationConfig(
        response_format={"type": "grammar", "grammar": grammar}, temperature=1.0, seed=2
    )
    text = engine.generate("The date of the moon landing:", config)[0][0][0]
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", text)
