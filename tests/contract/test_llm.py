"""The `llm` tool's models against the server with the default model."""

from __future__ import annotations

import json
from typing import Any

import pytest
from contract_server import KEY

models = pytest.importorskip("llm.default_plugins.openai_models", reason="needs `pip install llm`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def model(address: str) -> Any:
    made = models.Chat(
        "contract",
        key="contract",
        model_name="default",
        api_base=f"{address}/v1",
        supports_schema=True,
        supports_tools=True,
    )
    made.key = KEY
    return made


def test_answers(model: Any) -> None:
    whole = model.prompt(FRANCE, stream=False, temperature=0, max_tokens=24)
    assert "Paris" in whole.text() and whole.usage().input > 10
    assert model.prompt(FRANCE, stream=True, temperature=0, max_tokens=24).text() == whole.text()


def test_schemas(model: Any) -> None:
    schema = {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 20}},
        "required": ["name"],
        "additionalProperties": False,
    }
    answer = model.prompt("Name a city.", schema=schema, stream=False, temperature=0, max_tokens=60)
    assert "name" in json.loads(answer.text())


def test_conversations_and_tools(model: Any) -> None:
    import llm

    talk = model.conversation()
    first = talk.prompt(FRANCE, stream=False, temperature=0, max_tokens=24)
    assert first.text()
    second = talk.prompt("And of Italy?", stream=True, temperature=0, max_tokens=24)
    assert second.text() and second.usage().input > first.usage().input

    def get_weather(city: str) -> str:
        """The weather in a city."""
        return "Sunny."

    tool = llm.Tool.function(get_weather)
    for stream in (False, True):
        answer = model.prompt(
            "What is the weather in Paris?",
            tools=[tool],
            stream=stream,
            temperature=0,
            max_tokens=80,
        )
        text, calls = answer.text(), answer.tool_calls()
        assert text or calls
        assert all(one.name == "get_weather" and isinstance(one.arguments, dict) for one in calls)
