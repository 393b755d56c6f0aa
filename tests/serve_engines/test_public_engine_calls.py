"""The calls and expectations of MLC LLM's own tests of its two engines, with the default model.

They are those of `test_serve_engine.py` and `test_serve_async_engine.py` there, with shorter
answers that no stop token ends. One expectation is not ours: in MLC LLM's synchronous engine,
`_generate` ends with the last outputs. Here a usage item follows, as in its asynchronous engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve import AsyncMLCEngine, EngineConfig, MLCEngine

pytestmark = pytest.mark.model
PROMPTS = [
    "What is the meaning of life?",
    "Introduce the history of Pittsburgh to me. Please elaborate in detail.",
    "What is the difference between Lambda calculus and Turing machine?",
]
CONFIG = EngineConfig(max_total_sequence_length=4096)
MODEL = "default"
NO_EOS: dict[str, object] = {"debug_config": {"ignore_eos": True}}
SEQUENCES = 7


@pytest.fixture(scope="module")
def engine(default_model: object) -> Iterator[MLCEngine]:
    made = MLCEngine(model=None, mode="server", engine_config=CONFIG)
    yield made
    made.terminate()


def put(texts: list[str], outputs: list[Any]) -> None:
    """Take in the outputs of one step of `_generate`."""
    if len(outputs) == len(texts):
        for i, output in enumerate(outputs):
            texts[i] += output.delta_text
    else:
        assert len(outputs) == 1
        assert outputs[0].request_final_usage_json_str


def test_generate(engine: MLCEngine) -> None:
    config = GenerationConfig(max_tokens=16, n=SEQUENCES, debug_config=DebugConfig(ignore_eos=True))
    for number, prompt in enumerate(PROMPTS):
        texts = [""] * SEQUENCES
        for outputs in engine._generate(prompt, config, request_id=str(number)):
            put(texts, outputs)
        assert all(texts), texts


def test_chat_completion(engine: MLCEngine) -> None:
    for number, prompt in enumerate(PROMPTS[:2]):
        texts = ["", ""]
        asked: Any = {"messages": [{"role": "user", "content": prompt}], "model": MODEL}
        for response in engine.chat.completions.create(
            **asked, max_tokens=16, n=2, request_id=str(number), stream=True
        ):
            for choice in response.choices:  # type: ignore[union-attr]
                assert choice.delta.role == "assistant"
                assert isinstance(choice.delta.content, str)
                texts[choice.index] += choice.delta.content
        assert all(texts)


def test_chat_completion_non_stream(engine: MLCEngine) -> None:
    asked: Any = {"messages": [{"role": "user", "content": PROMPTS[0]}], "model": MODEL}
    response: Any = engine.chat.completions.create(**asked, max_tokens=16, n=2, request_id="0")
    assert len(response.choices) == 2
    for choice in response.choices:
        assert choice.message.role == "assistant"
        assert isinstance(choice.message.content, str) and choice.message.content


@pytest.mark.parametrize("stream", [False, True])
def test_completion(engine: MLCEngine, stream: bool) -> None:
    made: Any = engine.completions.create(
        prompt=PROMPTS[0],
        model=MODEL,
        max_tokens=48,
        n=1,
        request_id="0",
        stream=stream,
        extra_body=NO_EOS,
    )
    responses = list(made) if stream else [made]
    choices = [choice for response in responses for choice in response.choices]
    assert "".join(choice.text for choice in choices)
    assert choices[-1].finish_reason == "length"


def test_the_asynchronous_engine(default_model: object) -> None:
    engine = AsyncMLCEngine(model=None, mode="server", engine_config=CONFIG)
    try:
        asyncio.run(all_asynchronous(engine))
    finally:
        engine.terminate()


async def all_asynchronous(engine: AsyncMLCEngine) -> None:
    config = GenerationConfig(max_tokens=16, n=SEQUENCES, debug_config=DebugConfig(ignore_eos=True))

    async def generate(prompt: str, request_id: str) -> None:
        texts = [""] * SEQUENCES
        async for outputs in engine._generate(prompt, config, request_id=request_id):
            put(texts, outputs)
        assert all(texts)

    async def chat(prompt: str, request_id: str, stream: bool) -> None:
        asked: Any = {"messages": [{"role": "user", "content": prompt}], "model": MODEL}
        made: Any = await engine.chat.completions.create(
            **asked, max_tokens=16, n=1, request_id=request_id, stream=stream
        )
        if not stream:
            assert all(isinstance(one.message.content, str) for one in made.choices)
            assert all(one.message.role == "assistant" for one in made.choices)
            return
        async for response in made:
            assert all(one.delta.role == "assistant" for one in response.choices)
            assert all(isinstance(one.delta.content, str) for one in response.choices)

    async def complete(prompt: str, request_id: str, stream: bool) -> None:
        made: Any = await engine.completions.create(
            prompt=prompt, model=MODEL, max_tokens=16, n=1, request_id=request_id, stream=stream,
            extra_body=NO_EOS,
        )  # fmt: skip
        responses = [one async for one in made] if stream else [made]
        text = "".join(one.text for response in responses for one in response.choices)
        assert text

    await asyncio.gather(*(generate(one, str(i)) for i, one in enumerate(PROMPTS)))
    for work in (chat, complete):
        for stream in (True, False):
            await asyncio.gather(*(work(one, str(i), stream) for i, one in enumerate(PROMPTS[:2])))
