"""`JSONFFIEngine` and `ThreadedEngine` on the default model."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from json_ffi_harness import ask, engine_of, read
from threaded_harness import Running, eventually

from mlc_llm.json_ffi import JSONFFIEngine
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.openai.chat import chat_prompt
from mlc_llm.serve.sync_engine import SyncMLCEngine

pytestmark = pytest.mark.model
QUESTIONS = [f"What is {i} plus {i}?" for i in range(6)]
GREEDY = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[JSONFFIEngine]:
    with engine_of(str(default_model)) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def started(engine: JSONFFIEngine) -> None:
    """Its threads run from one test to the next; TVM starts its own at the first step."""
    ask(engine, "hi", **GREEDY)


@pytest.mark.one_of(2)
def test_answers_are_those_of_the_sync_engine(engine: JSONFFIEngine, default_model: Path) -> None:
    sync = SyncMLCEngine(str(default_model))
    prompts = [
        chat_prompt(
            [{"role": "user", "content": question}],
            tokenizer=sync.tokenizer,
            template=sync.bundle.chat_template,
        )
        for question in QUESTIONS
    ]
    expected = [
        sync.generate([prompt], GenerationConfig(**GREEDY))[0][0][0]  # type: ignore[arg-type]
        for prompt in prompts
    ]
    del sync
    gc.collect()  # its thread ends with it, and there are circles of references in it
    assert [ask(engine, question, **GREEDY).text for question in QUESTIONS] == expected


def test_logprobs_and_usage(engine: JSONFFIEngine) -> None:
    answer = ask(
        engine,
        "Name a colour.",
        **GREEDY,
        logprobs=True,
        top_logprobs=4,
        stream_options={"include_usage": True},
    )
    entries = [
        entry
        for chunk in answer.chunks
        for choice in chunk.choices
        for entry in (choice.logprobs.content if choice.logprobs else [])
    ]
    assert b"".join(bytes(entry.bytes or []) for entry in entries).decode() == answer.text
    for entry in entries:
        values = [one.logprob for one in entry.top_logprobs]
        assert len(values) == 4 and values == sorted(values, reverse=True)
        assert entry.logprob == pytest.approx(values[0])
    extra = answer.usages[0].extra
    assert extra is not None and extra["ttft_s"] > 0


def test_logit_bias_and_stop_string(engine: JSONFFIEngine) -> None:
    plain = ask(engine, "Say hello.", **GREEDY).text
    first = engine.tokenizer.encode(plain)[0]
    biased = ask(engine, "Say hello.", **GREEDY, logit_bias={first: -100})
    assert engine.tokenizer.encode(biased.text)[0] != first
    word = plain.split()[1]
    stopped = ask(engine, "Say hello.", **GREEDY, stop=word)
    assert stopped.text == plain[: plain.index(word)] and stopped.reason == "stop"


def test_overlapping_streams_with_an_abort_and_metrics(engine: JSONFFIEngine) -> None:
    request = {
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "debug_config": {"ignore_eos": True},
        "max_tokens": 2000,
    }
    streams = [
        engine._raw_chat_completion(json.dumps(request), True, f"story-{i}") for i in range(3)
    ]
    for stream in streams:
        next(stream)
    before = engine.metrics()["completion_tokens_sum"]
    engine._ffi["abort"]("story-0")
    streams[1].close()  # type: ignore[attr-defined]
    aborted = read(streams[0])
    assert aborted.reason == "abort" and len(aborted.usages) == 1
    eventually(lambda: engine.metrics()["completion_tokens_sum"] > before, "nothing has ended")
    engine._ffi["abort"]("story-2")
    assert read(streams[2]).reason == "abort"


@pytest.mark.slow
def test_memory_after_five_reloads(engine: JSONFFIEngine) -> None:
    statm = Path("/proc/self/statm")
    if not statm.is_file():
        pytest.skip("this system does not say how much memory a process has")
    sizes = []
    for _ in range(6):
        engine._test_reload()
        ask(engine, "hi", **GREEDY)
        sizes.append(int(statm.read_text(encoding="ascii").split()[1]))
    assert sizes[-1] < sizes[0] * 1.05
    engine._test_unload()
    page = os.sysconf("SC_PAGE_SIZE")
    assert (sizes[-1] - int(statm.read_text(encoding="ascii").split()[1])) * page > 50 * 2**20
    engine._test_reload()


def test_pages_are_free_after_an_abort_in_the_threaded_engine(default_model: Path) -> None:
    config = {"model": str(default_model), "prefix_cache_mode": "disable"}
    with Running(load=False) as running:
        running.engine.reload(json.dumps(config))
        runner = running.core._runner
        running.engine.add_request(
            running.engine.create_request("a", TokenData([1, 2, 3]), GenerationConfig())
        )
        eventually(lambda: "a" in running.reader.streams, "nothing streams")
        running.engine.abort_request("a")
        assert running.reader.end_of("a").reasons == ["abort"]
        eventually(lambda: runner.free_pages == runner.limits.num_pages, "pages are not free")
        running.engine.reload(json.dumps(config))
        running.engine.unload()
