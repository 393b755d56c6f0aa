"""The helpers of OpenAI's own client against the server with the default model: tools, the stream
that assembles and parses, embeddings, lists, headers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel, ConfigDict, Field

openai = pytest.importorskip("openai", reason="the contract tests need `pip install openai`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
GREEDY: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": 80}
WEATHER = "What is the weather in Paris?"
PARIS = "Paris is in France. Give the name and the country."


class GetWeather(BaseModel):
    """The weather in a city."""

    model_config = ConfigDict(extra="forbid")
    city: str = Field(max_length=20)


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def tool() -> Any:
    return openai.pydantic_function_tool(GetWeather)


def one_call(tool: Any) -> dict[str, Any]:
    """Arguments of a request that must end with one call."""
    return {"tools": [tool], "parallel_tool_calls": False, "messages": said(WEATHER), **GREEDY}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "GetWeather"}}]
)
def test_calls_whole_and_streamed(client: Any, tool: Any, choice: Any) -> None:
    arguments = {"tool_choice": choice, **one_call(tool)}
    whole = client.chat.completions.create(**arguments).choices[0]
    (call,) = whole.message.tool_calls
    assert whole.finish_reason == "tool_calls" and call.function.name == "GetWeather" and call.id
    assert set(json.loads(call.function.arguments)) == {"city"}
    pieces = [
        piece
        for chunk in client.chat.completions.create(stream=True, **arguments)
        for choice in chunk.choices
        for piece in choice.delta.tool_calls or []
    ]
    assert pieces[0].function.name == "GetWeather" and {piece.index for piece in pieces} == {0}
    assert "".join(one.function.arguments or "" for one in pieces) == call.function.arguments
    assert [bool(one.id) for one in pieces] == [True] + [False] * (len(pieces) - 1)


def test_the_stream_parses_calls(client: Any, tool: Any) -> None:
    with client.chat.completions.stream(tool_choice="required", **one_call(tool)) as stream:
        events = {event.type for event in stream}
        (call,) = stream.get_final_completion().choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, GetWeather)
    deltas = {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"}
    assert events >= deltas


def test_a_result_of_a_tool_comes_back(client: Any, tool: Any) -> None:
    arguments = one_call(tool)
    called = client.chat.completions.create(tool_choice="required", **arguments).choices[0].message
    result = {"role": "tool", "tool_call_id": called.tool_calls[0].id, "content": "Sunny."}
    arguments["messages"] = [*said(WEATHER), called, result]  # as the client's own examples do it
    answer = client.chat.completions.create(tool_choice="none", **arguments).choices[0]
    assert answer.message.content and answer.message.tool_calls is None


def test_the_stream_parses_answers(client: Any) -> None:
    with client.chat.completions.stream(
        messages=said(PARIS), response_format=City, n=2, **GREEDY
    ) as stream:
        events = {event.type for event in stream}
        choices = stream.get_final_completion().choices
    assert [type(one.message.parsed) for one in choices] == [City, City]
    assert {"content.delta", "content.done"} <= events


def test_an_answer_that_is_cut_is_an_error_of_the_client(client: Any) -> None:
    with pytest.raises(openai.LengthFinishReasonError) as cut:
        client.chat.completions.parse(
            messages=said(PARIS), response_format=City, **{**GREEDY, "max_tokens": 3}
        )
    assert cut.value.completion.usage.completion_tokens == 3


def test_the_asynchronous_client(address: str, tool: Any) -> None:
    async def ask() -> tuple[Any, Any]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as made:
            completions = made.chat.completions
            parsed = completions.parse(messages=said(PARIS), response_format=City, **GREEDY)
            async with completions.stream(tool_choice="required", **one_call(tool)) as stream:
                async for _ in stream:
                    pass
                final = await stream.get_final_completion()
            return (await parsed).choices[0].message, final.choices[0].message

    parsed, called = asyncio.run(ask())
    assert isinstance(parsed.parsed, City)
    assert isinstance(called.tool_calls[0].function.parsed_arguments, GetWeather)


def test_embeddings(client: Any) -> None:
    """The client asks for base64 by itself, and gives numbers."""
    texts = ["A cat sleeps.", "A kitten is asleep.", "Taxes rose in March."]
    packed = client.embeddings.create(model="default", input=texts)
    plain = client.embeddings.create(model="default", input=texts, encoding_format="float")
    assert [one.index for one in packed.data] == [0, 1, 2] and packed.usage.total_tokens > 10
    for own, other in zip(packed.data, plain.data, strict=True):
        assert own.embedding == pytest.approx(other.embedding, abs=1e-6)
        assert sum(x * x for x in own.embedding) == pytest.approx(1, abs=1e-4)
    raw = client.embeddings.create(model="default", input="a", encoding_format="base64")
    assert isinstance(raw.data[0].embedding, str)
    short = client.embeddings.create(model="default", input="a", dimensions=16)
    assert len(short.data[0].embedding) == 16


def test_models(client: Any) -> None:
    (model,) = client.models.list()
    assert client.models.retrieve(model.id) == model and model.object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-5")


def test_raw_answers_have_the_headers(client: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(messages=said("Hi"), **GREEDY)
    assert raw.headers["x-request-id"] == raw.request_id == raw.parse()._request_id
    named = client.chat.completions.with_raw_response.create(
        messages=said("Hi"), extra_headers={"x-client-request-id": "mine"}, user="me", **GREEDY
    )
    assert named.status_code == 200 and named.parse().choices[0].message.content


def test_prompts_streamed(client: Any) -> None:
    arguments = {**GREEDY, "max_tokens": 12, "prompt": ["One, two,", "A, B,"]}
    whole = client.completions.create(**arguments)
    texts = ["", ""]
    for chunk in client.completions.create(stream=True, **arguments):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
