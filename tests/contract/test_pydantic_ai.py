"""Pydantic AI's agents against the server with the default model, through three APIs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from contract_server import KEY
from pydantic import BaseModel, Field

ai = pytest.importorskip("pydantic_ai", reason="needs `pip install pydantic-ai-slim`")
openai = pytest.importorskip("openai")
anthropic = pytest.importorskip("anthropic")

pytestmark = [pytest.mark.model, pytest.mark.slow]
FRANCE = "What is the capital of France?"
PARIS = "Paris is in France. Give the name and the country."


class City(BaseModel):
    name: str = Field(max_length=20)
    country: str = Field(max_length=20)


APIS = ("chat", "responses", "anthropic")
SETTINGS = {"max_tokens": 80, "extra_body": {"temperature": 0}}


@asynccontextmanager
async def model_of(api: str, address: str) -> AsyncIterator[Any]:
    """A model whose connections are closed behind it."""
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "anthropic":
        async with anthropic.AsyncAnthropic(base_url=address, api_key=KEY) as client:
            yield AnthropicModel("default", provider=AnthropicProvider(anthropic_client=client))
        return
    kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY) as client:
        yield kind("default", provider=OpenAIProvider(openai_client=client))


@pytest.mark.parametrize("api", APIS)
def test_agents(address: str, api: str) -> None:
    async def run() -> tuple[str, str, City]:
        async with model_of(api, address) as model:
            whole = await ai.Agent(model).run(FRANCE, model_settings=SETTINGS)
            async with ai.Agent(model).run_stream(FRANCE, model_settings=SETTINGS) as stream:
                streamed = await stream.get_output()
            made = await ai.Agent(model, output_type=City).run(PARIS, model_settings=SETTINGS)
            return whole.output, streamed, made.output

    whole, streamed, city = asyncio.run(run())
    assert "Paris" in whole and streamed == whole and isinstance(city, City)


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_native_forms(address: str, api: str) -> None:
    """The client knows by the name of Anthropic's models which of them can do it."""

    async def run() -> City:
        async with model_of(api, address) as model:
            agent = ai.Agent(model, output_type=ai.NativeOutput(City))
            made: City = (await agent.run(PARIS, model_settings=SETTINGS)).output
            return made

    assert isinstance(asyncio.run(run()), City)
