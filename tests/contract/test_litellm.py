"""LiteLLM against the server with the default model, through three APIs."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from contract_server import KEY

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would look for prices in the network
litellm = pytest.importorskip("litellm", reason="needs `pip install litellm`")

pytestmark = [pytest.mark.model, pytest.mark.slow]
PATHS = {
    "openai/default": "/v1",
    "hosted_vllm/default": "/v1",
    "anthropic/default": "",
    "ollama_chat/default": "",
}


def asking(model: str, address: str, text: str, **more: Any) -> Any:
    messages = [{"role": "user", "content": text}]
    base = f"{address}{PATHS[model]}"
    sampling = {"temperature": 0, "max_tokens": 24, "num_retries": 0, **more}
    return litellm.completion(
        model=model, api_base=base, api_key=KEY, messages=messages, **sampling
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", PATHS)
def test_answers(address: str, model: str) -> None:
    whole = asking(model, address, "What is the capital of France?")
    assert "Paris" in whole.choices[0].message.content and whole.usage.prompt_tokens > 10
    chunks = asking(model, address, "What is the capital of France?", stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content


@pytest.mark.filterwarnings("ignore")
def test_a_prompt_that_is_too_long(address: str) -> None:
    for model in ("openai/default", "anthropic/default"):
        with pytest.raises(litellm.ContextWindowExceededError):
            asking(model, address, "word " * 20000)


TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 20}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", ["openai/default", "hosted_vllm/default", "anthropic/default"])
def test_forced_calls(address: str, model: str) -> None:
    choice = {"type": "function", "function": {"name": "get_weather"}}
    more: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 80}
    whole = asking(model, address, "What is the weather in Paris?", **more)
    call = whole.choices[0].message.tool_calls[0]
    assert call.function.name == "get_weather"
    assert set(json.loads(call.function.arguments)) == {"city"}
    chunks = list(asking(model, address, "What is the weather in Paris?", stream=True, **more))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0]
    assert built.function == call.function


@pytest.mark.filterwarnings("ignore")
def test_embeddings(address: str) -> None:
    found = litellm.embedding(
        model="openai/default", api_base=f"{address}/v1", api_key=KEY, input=["A cat.", "A dog."]
    )
    assert len(found.data) == 2 and found.usage.prompt_tokens > 3
    assert found.data[0]["embedding"] != found.data[1]["embedding"]
