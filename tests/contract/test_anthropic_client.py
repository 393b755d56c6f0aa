"""Anthropic's own client against the server with the default model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel

anthropic = pytest.importorskip("anthropic", reason="needs `pip install anthropic`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
COLD = {"temperature": 0}
"""New versions of the client have no argument for it."""
GREEDY: dict[str, Any] = {"model": "default", "max_tokens": 24, "extra_body": COLD}
FRANCE = "What is the capital of France?"


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with anthropic.Anthropic(base_url=address, api_key=KEY, max_retries=0) as made:
        yield made


def test_whole_messages(client: Any) -> None:
    answer = client.messages.create(messages=said(FRANCE), **GREEDY)
    assert answer.content[0].type == "text" and "Paris" in answer.content[0].text
    assert answer.stop_reason == "end_turn" and answer._request_id.startswith("req_")
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens > 10 and usage.output_tokens > 0


def test_streams_say_the_same(client: Any) -> None:
    whole = client.messages.create(messages=said("Name three colours."), **GREEDY)
    with client.messages.stream(messages=said("Name three colours."), **GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens
    raw = list(client.messages.create(messages=said(FRANCE), stream=True, **GREEDY))
    assert raw[0].type == "message_start" and raw[-1].type == "message_stop"
    assert raw[0].message.usage.input_tokens > 10


def test_a_kept_prompt_is_counted_apart(client: Any) -> None:
    question = said("Count the words of this sentence: one two three four five six seven eight.")
    first = client.messages.create(messages=question, **GREEDY).usage
    again = client.messages.create(messages=question, **GREEDY).usage
    total = first.input_tokens + first.cache_read_input_tokens
    assert again.input_tokens + again.cache_read_input_tokens == total
    assert again.cache_read_input_tokens > 0
    counted = client.messages.count_tokens(model="default", messages=question)
    assert counted.input_tokens == total


def test_stop_sequences(client: Any) -> None:
    answer = client.messages.create(messages=said(FRANCE), stop_sequences=["Paris"], **GREEDY)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "Paris")
    assert "Paris" not in answer.content[0].text
    short = client.messages.create(messages=said(FRANCE), **{**GREEDY, "max_tokens": 2})
    assert short.stop_reason == "max_tokens" and short.usage.output_tokens == 2


def test_structured_answers(client: Any) -> None:
    class City(BaseModel):
        name: str
        country: str

    question = said("Paris is in France. Give the name and the country.")
    answer = client.messages.parse(
        messages=question, output_format=City, model="default", max_tokens=80, extra_body=COLD
    )
    assert isinstance(answer.parsed_output, City)


WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
ASKED = "What is the weather in Paris?"


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_calls_and_their_results(client: Any, choice: dict[str, str]) -> None:
    more: dict[str, Any] = {"tools": [WEATHER], **GREEDY, "max_tokens": 100}
    one = {**choice, "disable_parallel_tool_use": True}
    answer = client.messages.create(messages=said(ASKED), tool_choice=one, **more)
    assert answer.stop_reason == "tool_use"
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert call.name == "get_weather" and set(call.input) == {"city"} and call.id
    with client.messages.stream(messages=said(ASKED), tool_choice=one, **more) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert final.content[-1].input == call.input and "input_json" in kinds
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "Sunny, 21 degrees."}
    turns = [
        *said(ASKED),
        {"role": "assistant", "content": answer.content},
        {"role": "user", "content": [result]},
    ]
    second = client.messages.create(messages=turns, tool_choice={"type": "none"}, **more)
    assert second.content[0].type == "text" and second.stop_reason in {"end_turn", "max_tokens"}
    counted = client.messages.count_tokens(model="default", messages=turns, tools=[WEATHER])
    assert counted.input_tokens > answer.usage.input_tokens


def test_errors_have_their_classes(client: Any, address: str) -> None:
    with pytest.raises(anthropic.NotFoundError):
        client.messages.create(messages=said("a"), model="claude", max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="temperature"):
        client.messages.create(messages=said("a"), **{**GREEDY, "extra_body": {"temperature": -1}})
    with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
        client.messages.create(messages=said("word " * 20000), **GREEDY)
    image = {"type": "base64", "media_type": "image/png", "data": ""}
    picture = [{"role": "user", "content": [{"type": "image", "source": image}]}]
    with pytest.raises(anthropic.BadRequestError, match="text only"):
        client.messages.create(messages=picture, **GREEDY)
    other = anthropic.Anthropic(base_url=address, api_key="wrong", max_retries=0)
    with other, pytest.raises(anthropic.AuthenticationError):
        other.messages.create(messages=said("a"), **GREEDY)


def test_many_at_once_and_one_that_is_given_up(address: str) -> None:
    async def ask() -> list[str]:
        async with anthropic.AsyncAnthropic(base_url=address, api_key=KEY, max_retries=0) as many:
            async with many.messages.stream(
                messages=said("Tell a story."), model="default", max_tokens=2000
            ) as given_up:
                await anext(aiter(given_up))
            answers = await asyncio.gather(
                *[
                    many.messages.create(messages=said(f"What is {i} plus 1?"), **GREEDY)
                    for i in range(4)
                ]
            )
            return [one.content[0].text for one in answers]

    assert all(asyncio.run(ask()))


def test_the_models(client: Any) -> None:
    (found,) = client.models.list()
    assert found.type == "model" and found.created_at.year > 2025
    assert found.max_input_tokens == client.models.retrieve(found.id).max_input_tokens
