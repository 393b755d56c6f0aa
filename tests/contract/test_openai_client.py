"""OpenAI's own client against the server with the default model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel

openai = pytest.importorskip("openai", reason="the contract tests need `pip install openai`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
GREEDY: dict[str, Any] = {"model": "default", "temperature": 0, "max_tokens": 24}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_whole_answers(client: Any) -> None:
    answer = client.chat.completions.create(
        messages=said("What is the capital of France?"), **GREEDY
    )
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop" and answer.usage.prompt_tokens > 10


def test_streams_say_the_same(client: Any) -> None:
    question = said("Name three colours.")
    whole = client.chat.completions.create(messages=question, **GREEDY)
    text, usages = "", []
    for chunk in client.chat.completions.create(
        messages=question, stream=True, stream_options={"include_usage": True}, **GREEDY
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usages += [chunk.usage] if chunk.usage is not None else []
    assert text == whole.choices[0].message.content
    assert [one.completion_tokens for one in usages] == [whole.usage.completion_tokens]


def test_the_assembling_stream(client: Any) -> None:
    with client.chat.completions.stream(messages=said("Hi"), **GREEDY) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.role == "assistant" and final.choices[0].message.content


def test_structured_answers(client: Any) -> None:
    class City(BaseModel):
        name: str
        country: str

    question = said("Paris is in France. Give the name and the country.")
    answer = client.chat.completions.parse(
        messages=question, response_format=City, model="default", temperature=0, max_tokens=80
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_log_probabilities(client: Any) -> None:
    chat = client.chat.completions.create(
        messages=said("Hi"), logprobs=True, top_logprobs=2, **GREEDY
    )
    content = chat.choices[0].logprobs.content
    assert "".join(one.token for one in content) == chat.choices[0].message.content
    assert all(len(one.top_logprobs) == 2 and one.logprob <= 0 for one in content)
    found = client.completions.create(prompt=["One two three", "A B C"], logprobs=2, **GREEDY)
    for choice in found.choices:
        assert "".join(choice.logprobs.tokens) == choice.text
        for own, top in zip(
            choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
        ):
            assert own == max(top.values())


def test_errors_have_their_classes(client: Any, address: str) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(messages=said("a"), model="gpt-5")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(messages=said("a"), model="default", temperature=-1)
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(messages=said("word " * 20000), model="default")
    assert long.value.code == "context_length_exceeded"
    locked = openai.OpenAI(base_url=f"{address}/v1", api_key="wrong", max_retries=0)
    with locked, pytest.raises(openai.AuthenticationError):
        locked.models.list()


def test_nulls_mean_the_default(client: Any) -> None:
    answer = client.chat.completions.create(
        messages=said("Hi"), n=None, stop=None, logit_bias=None, tools=None, **GREEDY
    )
    assert answer.choices[0].message.content


def test_many_at_once_and_one_that_is_given_up(address: str) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as many:
            create = many.chat.completions.create
            given_up = await create(messages=said("Tell a story."), model="default", stream=True)
            await anext(aiter(given_up))
            await given_up.close()
            answers = await asyncio.gather(
                *[create(messages=said(f"What is {i} plus 1?"), **GREEDY) for i in range(8)]
            )
            return [one.choices[0].message.content for one in answers]

    assert all(asyncio.run(ask()))


WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 20},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
            },
            "required": ["city", "unit"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME: dict[str, Any] = {"type": "function", "function": {"name": "get_time"}}
FORCED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [WEATHER, TIME],
    "model": "default",
    "temperature": 0,
    "max_tokens": 120,
}


def fits(call: Any) -> None:
    values = json.loads(call.function.arguments)
    assert call.type == "function" and call.id.startswith("call_")
    if call.function.name == "get_weather":
        assert values.keys() == {"city", "unit"} and values["unit"] in ("celsius", "fahrenheit")
    else:
        assert (call.function.name, values) == ("get_time", {})


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "get_weather"}}]
)
def test_forced_calls(client: Any, choice: Any) -> None:
    asked = {**FORCED, "tool_choice": choice, "parallel_tool_calls": False}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None
    (call,) = whole.message.tool_calls
    fits(call)
    with client.chat.completions.stream(**asked) as stream:
        names = [event.type for event in stream]
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.done" in names
    (streamed,) = final.message.tool_calls
    fits(streamed)
    assert streamed.function.arguments == call.function.arguments
    assert final.finish_reason == "tool_calls"


def test_a_second_turn_with_the_result(client: Any) -> None:
    first = client.chat.completions.create(**FORCED, tool_choice="required")
    message = first.choices[0].message
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": "21"} for call in message.tool_calls
    ]
    second = client.chat.completions.create(
        **{**FORCED, "messages": [*FORCED["messages"], message, *results]}, tool_choice="none"
    )
    assert second.choices[0].message.content and not second.choices[0].message.tool_calls


def test_an_effort_without_effect_is_named(client: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(
        messages=said("Hi"), reasoning_effort="low", **GREEDY
    )
    assert "reasoning_effort" in raw.headers["x-ignored-params"]
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(
            messages=said("Hi"),
            extra_body={"chat_template_kwargs": {"enable_thinking": False}},
            **GREEDY,
        )
    assert wrong.value.param == "chat_template_kwargs.enable_thinking"
