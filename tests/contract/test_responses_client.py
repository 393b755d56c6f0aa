"""OpenAI's own client for the Responses API, against the server with the default model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel

openai = pytest.importorskip("openai", reason="the contract tests need `pip install openai`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
GREEDY: dict[str, Any] = {"model": "default", "temperature": 0, "max_output_tokens": 24}
FRANCE = "What is the capital of France?"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def create(client: Any) -> Any:
    return client.responses.create


def test_whole_responses(create: Any) -> None:
    answer = create(input=FRANCE, **GREEDY)
    assert "Paris" in answer.output_text and answer.status == "completed"
    assert answer.usage.input_tokens > 10 and answer.store is False
    short = create(input=FRANCE, **{**GREEDY, "max_output_tokens": 2})
    assert short.status == "incomplete"
    assert short.incomplete_details.reason == "max_output_tokens"


def test_streams_say_the_same(create: Any) -> None:
    whole = create(input="Name three colours.", **GREEDY)
    events = list(create(input="Name three colours.", stream=True, **GREEDY))
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == whole.output_text
    last = events[-1]
    assert last.type == f"response.{whole.status}"
    assert last.response.output_text == whole.output_text


def test_the_assembling_stream(client: Any) -> None:
    with client.responses.stream(input=FRANCE, **GREEDY) as stream:
        for _ in stream:
            pass
        assert "Paris" in stream.get_final_response().output_text


def test_structured_answers(client: Any) -> None:
    class City(BaseModel):
        name: str
        country: str

    answer = client.responses.parse(
        input="Paris is in France. Give the name and the country.",
        text_format=City,
        model="default",
        temperature=0,
        max_output_tokens=80,
    )
    assert isinstance(answer.output_parsed, City)


def test_a_second_turn(create: Any) -> None:
    first = create(input="My name is Ada.", **GREEDY)
    items = [
        {"role": "user", "content": "My name is Ada."},
        *(one.model_dump() for one in first.output),
        {"role": "user", "content": "What is my name?"},
    ]
    second = create(input=items, instructions="Answer in a few words.", **GREEDY)
    assert second.output_text and second.usage.input_tokens > first.usage.total_tokens


WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}
ASKED = "What is the weather in Paris?"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "get_weather"}])
def test_calls_and_their_results(create: Any, choice: Any) -> None:
    more: dict[str, Any] = {"tools": [WEATHER], **GREEDY, "max_output_tokens": 100}
    more["parallel_tool_calls"] = False
    answer = create(input=ASKED, tool_choice=choice, **more)
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert call.name == "get_weather" and set(json.loads(call.arguments)) == {"city"}
    events = list(create(input=ASKED, tool_choice=choice, stream=True, **more))
    delta = "response.function_call_arguments.delta"
    assert "".join(one.delta for one in events if one.type == delta) == call.arguments
    assert events[-1].response.output[-1].arguments == call.arguments
    output = "Sunny, 21 degrees."
    result = {"type": "function_call_output", "call_id": call.call_id, "output": output}
    items = [
        {"role": "user", "content": ASKED},
        *(one.model_dump() for one in answer.output),
        result,
    ]
    second = create(input=items, tool_choice="none", **more)
    assert second.output_text and second.output[0].type == "message"


def test_log_probabilities(create: Any) -> None:
    include = ["message.output_text.logprobs"]
    answer = create(input="Hi", top_logprobs=2, include=include, **GREEDY)
    part = answer.output[0].content[0]
    assert "".join(one.token for one in part.logprobs) == part.text
    assert all(len(one.top_logprobs) == 2 for one in part.logprobs)


def test_errors_have_their_classes(create: Any) -> None:
    with pytest.raises(openai.BadRequestError) as stored:
        create(input="a", previous_response_id="resp_1", **GREEDY)
    assert stored.value.param == "previous_response_id"
    with pytest.raises(openai.BadRequestError) as long:
        create(input="word " * 20000, **GREEDY)
    assert long.value.code == "context_length_exceeded"
