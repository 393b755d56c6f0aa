"""LangChain's chat model against the server with the default model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel, Field

httpx = pytest.importorskip("httpx", reason="comes with langchain-openai")
langchain = pytest.importorskip("langchain_openai", reason="needs `pip install langchain-openai`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
FRANCE = "What is the capital of France?"
PARIS = "Paris is in France. Give the name and the country."


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


@pytest.fixture
def connections() -> Iterator[Any]:
    """They are closed at the end: LangChain's own client leaves them to the garbage collector."""
    with httpx.Client() as found:
        yield found


@pytest.fixture
def chat(address: str, connections: Any) -> Callable[..., Any]:
    return partial(
        langchain.ChatOpenAI,
        model="default",
        base_url=f"{address}/v1",
        api_key=KEY,
        temperature=0,
        max_tokens=80,
        max_retries=0,
        http_client=connections,
    )


@pytest.mark.parametrize("responses", [False, True])
def test_answers(chat: Callable[..., Any], responses: bool) -> None:
    model = chat(use_responses_api=responses)
    whole = model.invoke(FRANCE)
    assert "Paris" in whole.text and whole.usage_metadata["input_tokens"] > 10
    assert "".join(chunk.text for chunk in model.stream(FRANCE)) == whole.text


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_answers(chat: Callable[..., Any], method: str) -> None:
    found = chat().with_structured_output(City, method=method).invoke(PARIS)
    assert isinstance(found, City)


@pytest.mark.parametrize("responses", [False, True])
def test_a_call_of_any_tool(chat: Callable[..., Any], responses: bool) -> None:
    model = chat(use_responses_api=responses)
    bound = model.bind_tools([City], tool_choice="any", parallel_tool_calls=False)
    (call,) = bound.invoke(PARIS).tool_calls
    assert call["name"] == "City" and City.model_validate(call["args"])


def test_a_prompt_that_is_too_long(chat: Callable[..., Any]) -> None:
    with pytest.raises(Exception, match="maximum context length") as long:
        chat().invoke("word " * 20000)
    assert type(long.value).__name__ == "OpenAIContextOverflowError"


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # of two libraries there
def test_calls_and_forms_are_streamed(chat: Callable[..., Any]) -> None:
    model = chat(stream_usage=True)
    bound = model.bind_tools([City], tool_choice="City", parallel_tool_calls=False)
    first, *others = bound.stream(PARIS)
    for chunk in others:
        first += chunk
    (call,) = first.tool_calls
    assert City.model_validate(call["args"]) and first.usage_metadata["output_tokens"] > 0
    *_, last = model.with_structured_output(City, method="json_schema").stream(PARIS)
    assert isinstance(last, City)


def test_many_questions_at_once(chat: Callable[..., Any]) -> None:
    answers = chat().batch([FRANCE, "Hi", PARIS])
    assert all(one.text for one in answers)


def test_turns_with_results_of_tools(chat: Callable[..., Any]) -> None:
    from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage

    model = chat()
    turns = [SystemMessage("Be brief."), HumanMessage(PARIS)]
    called = model.bind_tools([City], tool_choice="any", parallel_tool_calls=False).invoke(turns)
    turns += [called, ToolMessage("noted", tool_call_id=called.tool_calls[0]["id"])]
    assert model.bind_tools([City], tool_choice="none").invoke(turns).text


def test_embeddings(address: str, connections: Any) -> None:
    """`check_embedding_ctx_length` would send token ids of another model."""
    model = langchain.OpenAIEmbeddings(
        model="default",
        base_url=f"{address}/v1",
        api_key=KEY,
        check_embedding_ctx_length=False,
        http_client=connections,
    )
    one, two = model.embed_documents(["A cat sleeps.", "Taxes rose."])
    assert len(one) == len(two) > 100 and model.embed_query("A cat sleeps.") == pytest.approx(
        one, abs=1e-4
    )
