"""Two replicas of the echo engine on Ray Serve, behind `mlc_llm serve --ray`, with OpenAI's client.

Ray itself is real: its processes, its proxy, its routing. One test file, one Ray.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from ray_app import LONGEST_S, STOP_S, Application, application

openai: Any = pytest.importorskip("openai", reason="needs `pip install openai`")
pytest.importorskip("ray", reason="needs the extra `ray`")

TEXT = "the words of this text come back one by one, and not one of them is lost or seen twice"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Application]:
    model = {"name": "echo", "model": "mock://echo?step_ms=2", "replicas": 2, "num_cpus": 0.3}
    model |= {"resume": "replica", "drain_s": 60, "prefill": {"min_tokens": 1500}}
    with application(openai.OpenAI, tmp_path_factory.mktemp("ray"), model, {}) as found:
        yield found


def _text(chunks: list[Any]) -> str:
    return "".join(one.choices[0].delta.content or "" for one in chunks if one.choices)


def test_the_protocol_is_that_of_the_server(app: Application) -> None:
    assert [one.id for one in app.client.models.list()] == ["echo"]
    found = app.client.chat.completions.create(
        model="echo", messages=[{"role": "user", "content": TEXT}], n=2
    )
    assert [one.message.content for one in found.choices] == [TEXT, TEXT]
    assert found.usage is not None and found.usage.completion_tokens == 2 * len(TEXT)
    chunks = list(app.stream(TEXT))
    assert _text(chunks) == TEXT and len(chunks) > 10
    assert chunks[-1].usage.completion_tokens == len(TEXT)
    assert json.loads(app.get("/health")) == {"status": "ok"}
    assert b"vllm:num_requests_running" in app.get("/metrics")
    with pytest.raises(openai.BadRequestError) as refused:
        app.client.chat.completions.create(model="echo", messages=[], max_tokens=1)
    assert refused.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        app.client.completions.create(model="other", prompt="a")


def test_prompts_go_where_their_beginning_is(app: Application) -> None:
    """Replicas say what they hold. New prompts in each round: chance alone finds all of ten at
    their replica once in a thousand rounds."""
    for attempt in range(12):
        prompts = [f"{attempt} {number} " + "abcdefghij"[number] * 400 for number in range(10)]
        for one in prompts:
            _cached(app, one)
        time.sleep(0.5)  # events come soon, and once they are followed at all
        again = [_cached(app, one) for one in prompts]
        if min(again) >= 384:
            return
    raise AssertionError(again)


def _cached(app: Application, text: str) -> int:
    found = app.client.completions.create(model="echo", prompt=text, max_tokens=1)
    assert found.usage is not None and found.usage.prompt_tokens_details is not None
    return found.usage.prompt_tokens_details.cached_tokens or 0


def test_long_prompts_are_computed_elsewhere_while_replicas_are_busy(app: Application) -> None:
    """Its pages come through Ray's store, so its replica finds all but the last token."""
    streams = [app.stream("a" * 3000) for _ in range(4)]
    for number in range(20):
        found = app.client.completions.create(
            model="echo", prompt=f"{number} " + "long " * 320, max_tokens=30
        )
        assert found.choices[0].text == (f"{number} " + "long " * 320)[:30]
        if found.usage.prompt_tokens_details.cached_tokens == found.usage.prompt_tokens - 1:
            break
    else:
        raise AssertionError(found.usage)
    for one in streams:
        one.close()


def test_a_client_that_goes_frees_its_replica(app: Application) -> None:
    for _ in range(40):  # more than both replicas compute at a time, if they went on
        stream = app.stream("a" * 3000)
        next(iter(stream))
        stream.close()
    started = time.monotonic()
    assert _text(list(app.stream(TEXT))) == TEXT
    assert time.monotonic() - started < LONGEST_S


def test_killed_replicas_are_not_seen(app: Application) -> None:
    """Several clients, and a kill while they stream: each gets its whole text once."""
    long = TEXT * 20
    results: list[str] = []

    def ask() -> None:
        chunks = list(app.stream(long))
        usage = [one.usage.completion_tokens for one in chunks if one.usage]
        results.append(_text(chunks) if usage == [len(long)] else f"usage {usage}")

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for one in threads:
        one.start()
    before = app.replicas()
    assert len(before) == 2
    os.kill(before[0], signal.SIGKILL)
    for one in threads:
        one.join(LONGEST_S)
    assert results == [long] * 6


def test_metrics_are_those_of_all_replicas(app: Application) -> None:
    """The one that was killed is replaced, and both answer."""
    end = time.monotonic() + LONGEST_S
    while b"\nreplicas_answering 2\n" not in (page := app.get("/metrics")):
        assert time.monotonic() < end, page
        time.sleep(0.2)
    assert b'vllm:num_requests_running{engine="0",model_name="echo"} 0' in page
    assert b'mlc_llm:engine_responds{model_name="echo"} 1' in page


def test_answers_end_before_the_command_does(app: Application) -> None:
    """The last test of this file: it ends the application."""
    text = "ab" * 1000
    stream = iter(app.stream(text))
    chunks = [next(stream)]
    app.process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    with pytest.raises(openai.OpenAIError):
        while time.monotonic() < started + LONGEST_S:
            app.client.completions.create(model="echo", prompt="a", max_tokens=1)
    chunks += stream
    assert _text(chunks) == text
    assert chunks[-1].usage.completion_tokens == len(text)
    assert app.process.wait(STOP_S) == 0
