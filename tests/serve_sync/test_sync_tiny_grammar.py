"""Structured output on the tiny random model, whose output is wider than its vocabulary."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.sync_engine import SyncMLCEngine

POINT = {
    "type": "object",
    "properties": {
        "x coordinate": {"type": "integer", "minimum": -99, "maximum": 99},
        "name": {"type": "string", "maxLength": 5},
        "kind": {"enum": ["corner", "edge", None]},
    },
    "required": ["x coordinate", "name", "kind"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def engine(tiny: Path) -> SyncMLCEngine:
    return SyncMLCEngine(str(tiny), "cpu")


@pytest.mark.parametrize("mode", ["jump_forward", "constraint"])
def test_fifty_seeds_fit_the_schema_beside_free_text(engine: SyncMLCEngine, mode: str) -> None:
    wanted = {"type": "json_object", "schema": json.dumps(POINT)}
    debug = {"grammar_execution_mode": mode}
    configs = [
        GenerationConfig(
            temperature=1.0, seed=seed, max_tokens=150, response_format=wanted, debug_config=debug
        )
        for seed in range(50)
    ]
    free = GenerationConfig(temperature=0, max_tokens=20)
    prompts = ["A point:"] * 51
    *points, beside = engine.generate(prompts, [*configs, free])[0]
    for (text,) in points:
        found = json.loads(text)
        assert found.keys() == POINT["properties"].keys()
        assert isinstance(found["x coordinate"], int) and abs(found["x coordinate"]) <= 99
        assert isinstance(found["name"], str) and len(found["name"]) <= 5
        assert found["kind"] in ("corner", "edge", None)
    assert len({text for (text,) in points}) > 40
    assert engine.generate(prompts[0], free)[0] == [beside]


def test_a_regular_expression_in_its_short_form(engine: SyncMLCEngine) -> None:
    wanted = {"type": "regex", "regex": "[a-c]{3}-[0-9]{2}"}
    config = GenerationConfig(temperature=1.0, seed=1, n=5, max_tokens=20, response_format=wanted)
    result = engine.generate("An id:", config)
    assert all(re.fullmatch(wanted["regex"], text) for text in result.texts[0])
    assert result.finish_reasons == [["stop"] * 5]
