"""`AsyncMLCEngine` on the echo engine, whose answer is its prompt."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import warnings
from typing import Any

import pytest
from threaded_harness import PATIENCE_SECONDS, eventually, frozen

from mlc_llm import AsyncMLCEngine
from mlc_llm.errors import InvalidField, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
)
from mlc_llm.serve.async_engine import AsyncAnswerChunks
from mlc_llm.serve.async_reader import _hand_out

LONG = "abc " * 400


async def chat(engine: AsyncMLCEngine, text: str, **more: Any) -> str | None:
    messages = [{"role": "user", "content": text}]
    found = await engine.chat.completions.create(messages=messages, **more)
    assert isinstance(found, ChatCompletionResponse)
    return found.choices[0].message.content


async def stream(
    engine: AsyncMLCEngine, text: str, **more: Any
) -> AsyncAnswerChunks[ChatCompletionStreamResponse]:
    messages = [{"role": "user", "content": text}]
    found = await engine.chat.completions.create(messages=messages, stream=True, **more)
    assert isinstance(found, AsyncAnswerChunks)
    return found


async def texts_of(chunks: AsyncAnswerChunks[ChatCompletionStreamResponse]) -> str:
    return "".join([one.delta.content or "" async for c in chunks for one in c.choices])


def running(engine: AsyncMLCEngine) -> int:
    return len(engine._client._callback.running)


async def ended(engine: AsyncMLCEngine) -> None:
    await asyncio.to_thread(eventually, lambda: running(engine) == 0, "a request goes on")


def test_many_answers_at_once(async_engine: AsyncMLCEngine) -> None:
    async def one(i: int) -> str | None:
        if i % 2:
            return await chat(async_engine, f"text {i}")
        return await texts_of(await stream(async_engine, f"text {i}"))

    async def all_of() -> list[str | None]:
        return await asyncio.gather(*map(one, range(12)))

    assert asyncio.run(all_of()) == [f"text {i}" for i in range(12)]


def test_completions(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> tuple[CompletionResponse, list[CompletionResponse]]:
        whole = await async_engine.completions.create(prompt=["a", "b"], echo=True)
        chunks = await async_engine.completions.create(prompt="cd", stream=True)
        assert isinstance(whole, CompletionResponse) and isinstance(chunks, AsyncAnswerChunks)
        return whole, [chunk async for chunk in chunks]

    whole, chunks = asyncio.run(ask())
    assert [one.text for one in whole.choices] == ["aa", "bb"]
    assert "".join(one.text for chunk in chunks for one in chunk.choices) == "cd"


def test_the_loop_is_woken_once_a_step(
    async_engine: AsyncMLCEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def counted(news: Any) -> None:
        calls.append(len(news))
        _hand_out(news)

    monkeypatch.setattr("mlc_llm.serve.async_reader._hand_out", counted)

    async def ask() -> None:
        with frozen():
            chats = [asyncio.ensure_future(chat(async_engine, "x" * 50, n=4)) for _ in range(4)]
            await asyncio.to_thread(eventually, lambda: running(async_engine) == 4, "not begun")
        await asyncio.gather(*chats)

    asyncio.run(ask())
    assert sum(calls) >= 4 * 51  # a chunk has the news of all choices of a request
    assert len(calls) <= 4 * 51 / 2  # several requests share a wake-up


def test_cancelling_a_task_ends_its_request(async_engine: AsyncMLCEngine) -> None:
    async def cancel(streamed: bool) -> None:
        async def read() -> None:
            if streamed:
                await texts_of(await stream(async_engine, LONG))
            else:
                await chat(async_engine, LONG)

        task = asyncio.create_task(read())
        await asyncio.to_thread(eventually, lambda: running(async_engine) == 1, "never began")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await ended(async_engine)

    for streamed in (False, True):
        asyncio.run(cancel(streamed))


def test_a_request_that_is_cancelled_before_it_starts_never_runs(
    async_engine: AsyncMLCEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, go_on = threading.Event(), threading.Event()
    start = async_engine._client.start

    def late(*args: Any) -> None:
        began.set()
        go_on.wait(PATIENCE_SECONDS)
        start(*args)

    monkeypatch.setattr(async_engine._client, "start", late)

    async def cancel() -> None:
        task = asyncio.create_task(chat(async_engine, LONG))
        await asyncio.to_thread(began.wait, PATIENCE_SECONDS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()

    asyncio.run(cancel())  # its end waits for the thread
    assert running(async_engine) == 0
    monkeypatch.undo()
    assert asyncio.run(async_engine.metrics())["prefill_tokens_sum"] == 0


@pytest.mark.parametrize("way", ["close", "with", "break", "forget"])
def test_a_stream_that_nobody_reads_ends(async_engine: AsyncMLCEngine, way: str) -> None:
    async def leave() -> None:
        chunks = await stream(async_engine, LONG)
        await anext(chunks)
        if way == "close":
            await chunks.close()
        elif way == "with":
            async with chunks:
                await anext(chunks)
        elif way == "break":
            async for _ in chunks:
                break
        del chunks
        gc.collect()
        await ended(async_engine)

    asyncio.run(leave())


def test_a_loop_that_is_gone_ends_its_requests(async_engine: AsyncMLCEngine) -> None:
    kept = asyncio.run(stream(async_engine, LONG))
    eventually(lambda: running(async_engine) == 0, "it goes on")
    del kept


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_stream_that_a_forked_process_forgets_goes_on(async_engine: AsyncMLCEngine) -> None:
    async def fork() -> str:
        chunks = await stream(async_engine, "hello")
        child = os.fork()
        if child == 0:
            unraisable: list[object] = []
            sys.unraisablehook = unraisable.append
            del chunks
            gc.collect()
            os._exit(len(unraisable))
        assert os.waitpid(child, 0)[1] == 0
        return await texts_of(chunks)

    with warnings.catch_warnings():  # Python warns of forks in programs with threads
        warnings.simplefilter("ignore", DeprecationWarning)
        assert asyncio.run(fork()) == "hello"


def test_several_loops_at_once(async_engine: AsyncMLCEngine) -> None:
    found: list[str | None] = []

    def one(i: int) -> None:
        found.append(asyncio.run(chat(async_engine, f"text {i}")))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(str, found)) == [f"text {i}" for i in range(4)]


def test_wrong_requests_are_refused(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> None:
        with pytest.raises(UserError, match="temperature"):
            await chat(async_engine, "a", temperature=-1)
        with pytest.raises(TypeError, match="tempature"):
            await chat(async_engine, "a", tempature=-1)
        chunks = await stream(async_engine, LONG, request_id="one")
        with pytest.raises(InvalidField, match="request_id"):
            await chat(async_engine, "a", request_id="one")
        await chunks.close()
        await ended(async_engine)

    asyncio.run(ask())


def test_abort_metrics_unload_reload(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> None:
        chunks = await stream(async_engine, LONG, request_id="one")
        await anext(chunks)
        await async_engine.abort("one")
        reasons = [one.finish_reason async for chunk in chunks for one in chunk.choices]
        assert reasons[-1] == "abort"
        assert (await async_engine.metrics())["prefill_tokens_sum"] > 0
        await async_engine.unload()
        await async_engine.reload()
        await async_engine.reload({"max_num_sequence": 3})
        assert async_engine.engine_config.max_num_sequence == 3
        await async_engine.reset()
        assert await chat(async_engine, "a") == "a"

    asyncio.run(ask())


def test_a_second_reader_is_refused_and_the_first_goes_on(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> None:
        chunks = await stream(async_engine, "hello")
        both = asyncio.gather(texts_of(chunks), texts_of(chunks), return_exceptions=True)
        first, second = await asyncio.wait_for(both, 20)
        assert first == "hello"
        assert isinstance(second, UserError) and "another task reads this answer" in str(second)
        assert await texts_of(chunks) == ""

    asyncio.run(ask())


def test_tasks_may_read_one_after_the_other(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> None:
        async with await stream(async_engine, LONG) as chunks:
            await asyncio.create_task(anext(chunks))
            await asyncio.wait_for(asyncio.create_task(anext(chunks)), 20)

    asyncio.run(ask())


def test_the_context_manager_ends_the_threads() -> None:
    async def ask() -> str | None:
        async with AsyncMLCEngine("mock://echo") as engine:
            return await chat(engine, "a")

    assert asyncio.run(ask()) == "a"


def test_generate_gives_the_usage_last(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> tuple[list[str], list[str | None]]:
        texts, usages = ["", ""], []
        async for outputs in async_engine._generate("hello", GenerationConfig(n=2), "0"):
            usages.append(outputs[0].request_final_usage_json_str)
            for i, one in enumerate(outputs):
                texts[i] += one.delta_text
        return texts, usages

    texts, usages = asyncio.run(ask())
    assert texts == ["hello", "hello"]
    assert usages[-1] is not None and set(usages[:-1]) == {None}
