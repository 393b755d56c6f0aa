"""Ollama's own client against the server with the default model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel

ollama = pytest.importorskip("ollama", reason="needs `pip install ollama`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
FRANCE = "What is the capital of France?"
GREEDY: dict[str, Any] = {"model": "default", "options": {"temperature": 0, "num_predict": 24}}
HEADERS = {"authorization": f"Bearer {KEY}"}


def said(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with ollama.Client(host=address, headers=HEADERS) as made:
        yield made


def test_chats(client: Any) -> None:
    whole = client.chat(messages=said(FRANCE), **GREEDY)
    assert "Paris" in whole.message.content and whole.done_reason == "stop"
    assert whole.prompt_eval_count > 10 and whole.eval_duration > 0 and whole.total_duration > 0
    parts = list(client.chat(messages=said(FRANCE), stream=True, **GREEDY))
    assert "".join(one.message.content for one in parts) == whole.message.content
    assert [one.done for one in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == whole.eval_count


def test_prompts(client: Any) -> None:
    whole = client.generate(prompt=FRANCE, **GREEDY)
    assert "Paris" in whole.response
    parts = list(client.generate(prompt=FRANCE, stream=True, **GREEDY))
    assert "".join(one.response for one in parts) == whole.response
    raw = client.generate(prompt="One, two, three,", raw=True, **GREEDY)
    assert "four" in raw.response and raw.done_reason == "length"
    assert client.generate(model="default").done_reason == "load"


def test_forms(client: Any) -> None:
    class City(BaseModel):
        name: str
        country: str

    question = said("Paris is in France. Give the name and the country.")
    options = {"temperature": 0, "num_predict": 80}
    for form in ("json", City.model_json_schema()):
        answer = client.chat(model="default", messages=question, format=form, options=options)
        found = json.loads(answer.message.content)
        assert isinstance(found, dict)
    assert City.model_validate(found)


def get_weather(city: str) -> str:
    """The weather in a city.

    Args:
      city: its name
    """
    return f"Sunny in {city}."


def test_tools(client: Any) -> None:
    """This API cannot force a call, and the model is small: it may answer with a text."""
    question = said("What is the weather in Paris?")
    answer = client.chat(messages=question, tools=[get_weather], **GREEDY)
    calls = answer.message.tool_calls or []
    assert all(one.function.name == "get_weather" for one in calls)
    assert calls or answer.message.content
    call = {"function": {"name": "get_weather", "arguments": {"city": "Paris"}}}
    turns = [
        *question,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_name": "get_weather", "content": get_weather("Paris")},
    ]
    second = client.chat(messages=turns, tools=[get_weather], **GREEDY)
    assert second.prompt_eval_count > answer.prompt_eval_count and second.done


def test_log_probabilities(client: Any) -> None:
    answer = client.chat(messages=said("Hi"), logprobs=True, top_logprobs=2, **GREEDY)
    assert "".join(one.token for one in answer.logprobs) == answer.message.content
    assert all(len(one.top_logprobs) == 2 for one in answer.logprobs)


def test_embeddings(client: Any) -> None:
    texts = ["A cat sleeps.", "A kitten is asleep.", "Taxes rose in March."]
    found = client.embed(model="default", input=texts)
    assert len(found.embeddings) == 3 and found.prompt_eval_count > 10
    assert all(abs(sum(x * x for x in one) - 1) < 1e-4 for one in found.embeddings)
    single = client.embed(model="default", input=texts[0], dimensions=16)
    assert len(single.embeddings[0]) == 16


def test_models(client: Any) -> None:
    (model,) = client.list().models
    assert model.model and model.size > 10**7 and len(model.digest) == 64
    assert model.details.format == "gguf" and model.details.quantization_level
    shown = client.show(model.model)
    assert shown.modelinfo["general.architecture"] == model.details.family == "llama"
    assert shown.modelinfo["general.parameter_count"] > 10**8
    assert "completion" in shown.capabilities and shown.template
    (loaded,) = client.ps().models
    assert loaded.model == model.model and loaded.context_length > 1000


def test_errors(client: Any, address: str) -> None:
    with pytest.raises(ollama.ResponseError, match="does not exist") as missing:
        client.chat(model="llama3", messages=said("a"))
    assert missing.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="temperature"):
        client.chat(model="default", messages=said("a"), options={"temperature": -1})
    with pytest.raises(ollama.ResponseError, match="context length"):
        list(client.chat(model="default", messages=said("word " * 20000), stream=True))
    with pytest.raises(ollama.ResponseError) as locked, ollama.Client(host=address) as other:
        other.chat(messages=said("a"), **GREEDY)
    assert locked.value.status_code == 401


def test_many_at_once_and_one_that_is_given_up(address: str) -> None:
    async def ask() -> list[str]:
        async with ollama.AsyncClient(host=address, headers=HEADERS) as many:
            given_up = await many.chat(model="default", messages=said("Tell a story."), stream=True)
            await anext(given_up)
            await given_up.aclose()
            answers = await asyncio.gather(
                *[many.chat(messages=said(f"What is {i} plus 1?"), **GREEDY) for i in range(4)]
            )
            return [one.message.content for one in answers]

    assert all(asyncio.run(ask()))
