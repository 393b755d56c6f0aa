"""The agents of OpenAI's SDK against the server with the default model."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from contract_server import KEY

agents = pytest.importorskip("agents", reason="needs `pip install openai-agents`")
openai = pytest.importorskip("openai")

pytestmark = [pytest.mark.model, pytest.mark.slow]
ASKED = "What is the weather in Paris?"


def agent_of(kind: str, client: Any, cities: list[str]) -> Any:
    def get_weather(city: str) -> str:
        """The weather in a city."""
        cities.append(city)
        return f"Sunny in {city}."

    settings = agents.ModelSettings(
        temperature=0, max_tokens=100, tool_choice="required", parallel_tool_calls=False
    )
    return agents.Agent(
        name="Weather",
        instructions="Answer briefly.",
        model=getattr(agents, kind)("default", client),
        model_settings=settings,
        tools=[agents.function_tool(get_weather)],
    )


@pytest.mark.parametrize("kind", ["OpenAIResponsesModel", "OpenAIChatCompletionsModel"])
def test_an_agent_calls_its_tool_and_answers(address: str, kind: str) -> None:
    agents.set_tracing_disabled(True)

    async def run() -> tuple[str, str, list[str]]:
        cities: list[str] = []
        url = f"{address}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY, max_retries=0) as client:
            agent = agent_of(kind, client, cities)
            whole = await agents.Runner.run(agent, ASKED, max_turns=4)
            streamed = agents.Runner.run_streamed(agent, ASKED, max_turns=4)
            async for _ in streamed.stream_events():
                pass
            return whole.final_output, streamed.final_output, cities

    whole, streamed, cities = asyncio.run(run())
    assert whole and whole == streamed
    assert len(cities) == 2 and cities[0] == cities[1]
