"""Tools and formats with the default model, whose chat template has no place for them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from mlc_llm import AsyncMLCEngine, MLCEngine
from mlc_llm.json_ffi import JSONFFIEngine

pytestmark = pytest.mark.model
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "unit": {"enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
        },
    },
}
TIME = {"type": "function", "function": {"name": "get_time", "description": "The time now"}}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER, TIME],
    "parallel_tool_calls": False,
    "temperature": 0,
    "max_tokens": 80,
}
SMALL: dict[str, Any] = {"max_total_sequence_length": 8192, "max_num_sequence": 2}
NAMED = {"type": "function", "function": {"name": "get_weather"}}


def check(name: str, arguments: str) -> None:
    values = json.loads(arguments)
    if name == "get_time":
        assert values == {}
        return
    assert name == "get_weather" and {"city", "unit"} <= values.keys() <= {"city", "unit", "days"}
    assert isinstance(values["city"], str) and len(values["city"]) <= 20
    assert values["unit"] in ("celsius", "fahrenheit") and 1 <= values.get("days", 1) <= 9


@pytest.fixture(scope="module")
def engine(default_model: object) -> Iterator[MLCEngine]:
    with MLCEngine(engine_config=SMALL) as made:
        yield made


@pytest.fixture
def watch() -> None:
    """In place of the check that no thread is left: the engine stays open."""


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_forced_calls_fit_their_schema(engine: MLCEngine, choice: Any, temperature: float) -> None:
    asked = {**ASKED, "temperature": temperature, "tool_choice": choice, "seed": 3, "n": 2}
    whole: Any = engine.chat.completions.create(**asked)
    for found in whole.choices:
        assert found.finish_reason == "tool_calls" and found.message.content is None
        (call,) = found.message.tool_calls
        check(call.function.name, call.function.arguments)
        assert choice == "required" or call.function.name == "get_weather"
    chunks = list(engine.chat.completions.create(stream=True, **asked))
    pieces: dict[int, list[Any]] = {0: [], 1: []}
    for chunk in chunks:
        for one in chunk.choices:
            pieces[one.index] += one.delta.tool_calls or []
    for index, found in enumerate(whole.choices):
        first, *more = pieces[index]
        assert first.id.startswith("call_") and first.type == "function" and len(more) > 2
        assert all(one.id is None and one.function.name is None for one in more)
        text = "".join(one.function.arguments for one in pieces[index])
        assert (first.function.name, text) == (
            found.message.tool_calls[0].function.name,
            found.message.tool_calls[0].function.arguments,
        )


def test_a_turn_with_a_result(engine: MLCEngine) -> None:
    first: Any = engine.chat.completions.create(**{**ASKED, "tool_choice": NAMED})
    message = first.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "21, sunny"}
    turns = [*ASKED["messages"], message.model_dump(exclude_none=True), result]
    answer: Any = engine.chat.completions.create(
        **{**ASKED, "messages": turns, "tool_choice": "none", "max_tokens": 20}
    )
    assert answer.choices[0].message.content and not answer.choices[0].message.tool_calls


def test_asynchronous_and_through_the_ffi(default_model: object) -> None:
    async def ask() -> Any:
        async with AsyncMLCEngine(engine_config=SMALL) as made:
            return await made.chat.completions.create(**{**ASKED, "tool_choice": "required"})

    (call,) = asyncio.run(ask()).choices[0].message.tool_calls
    check(call.function.name, call.function.arguments)
    ffi = JSONFFIEngine(None, engine_config=SMALL)
    try:
        chunks = list(ffi.chat.completions.create(**{**ASKED, "tool_choice": "required"}))
    finally:
        ffi.terminate()
    pieces = [one for chunk in chunks for one in chunk.choices[0].delta.tool_calls or []]
    assert pieces[0].function is not None and pieces[0].function.name == call.function.name
    text = "".join(one.function.arguments or "" for one in pieces if one.function)
    assert text == call.function.arguments
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_deep_schema(engine: MLCEngine) -> None:
    schema: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 3}
    for _ in range(64):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    tool = {"type": "function", "function": {"name": "deep", "parameters": schema}}
    answer: Any = engine.chat.completions.create(
        **{**ASKED, "tools": [tool], "tool_choice": "required", "max_tokens": 600}
    )
    value = json.loads(answer.choices[0].message.tool_calls[0].function.arguments)
    for _ in range(64):
        value = value["a"]
    assert value in (1, 2, 3)
