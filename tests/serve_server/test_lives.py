"""Many lives of engines behind a server, faults of one request, and secrets that stay apart."""

from __future__ import annotations

import asyncio
import faulthandler
import random
import threading
from pathlib import Path
from typing import Any

import pytest
from server_harness import Running, running
from threaded_harness import PATIENCE_SECONDS, eventually

from mlc_llm.errors import MLCError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.runtime.batch import Batch, BatchOutput, Sampled
from mlc_llm.serve.async_reader import AsyncClient, begin, deliver_to_loops
from mlc_llm.serve.client import EngineClient
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.core.mock_echo import EchoRunner
from mlc_llm.serve.openai.raw_calls import prompt_part

NOT_FINITE = "the model produced logits that are not finite"


def answer(server: Running, text: str, **more: Any) -> str:
    reply = server.chat(text, **more)
    assert reply.status == 200, reply.data
    found: str = reply.json["choices"][0]["message"]["content"]
    return found


def test_a_row_that_is_not_finite_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    usual, broken = EchoRunner.run, True

    def run(self: EchoRunner, batch: Batch) -> BatchOutput:
        samples = list(usual(self, batch).samples)
        for i, row in enumerate(batch.rows):
            tokens = bytes(self._sequences[row.seq_id].tokens)
            if broken and b"spoilt" in tokens and samples[i]:
                samples[i] = [Sampled(-1, error=NOT_FINITE)]
        return BatchOutput(samples)

    monkeypatch.setattr(EchoRunner, "run", run)
    with running() as server:
        found: dict[str, Any] = {}

        def ask(text: str) -> None:
            found[text] = server.chat(text)

        texts = ["spoilt " + "x" * 60, *(f"neighbour {i} " + "y" * 60 for i in range(4))]
        threads = [threading.Thread(target=ask, args=(text,)) for text in texts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        failed = found.pop(texts[0])
        assert failed.status == 500 and NOT_FINITE in failed.error["message"]
        for text, reply in found.items():
            assert reply.json["choices"][0]["message"]["content"] == text
        server.wait_idle()
        cache = server.client._engine.loaded.core.prefix_cache
        kept = [bytes(cache.tokens(one)) for one in cache.recycling]
        assert not any(b"spoilt" in one for one in kept)
        broken = False
        reply = server.chat(texts[0])
        assert reply.json["choices"][0]["message"]["content"] == texts[0]
        assert reply.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_an_answer_is_the_same_beside_anybody_s_secrets() -> None:
    with running(sequences=8) as server:
        text = "canary " + "a" * 100
        alone = server.chat(text, seed=1, n=2).json["choices"]
        stop = threading.Event()

        def neighbour(i: int) -> None:
            while not stop.is_set():
                found = answer(server, f"secret {i} " + chr(65 + i) * 80)
                assert "canary" not in found and found.count(chr(65 + i)) >= 80

        threads = [threading.Thread(target=neighbour, args=(i,)) for i in range(5)]
        for thread in threads:
            thread.start()
        try:
            for _ in range(5):
                assert server.chat(text, seed=1, n=2).json["choices"] == alone
        finally:
            stop.set()
            for thread in threads:
                thread.join()


@pytest.mark.parametrize("place", ["core.step", "core.add_request", "core.abort_request"])
def test_a_fault_of_the_engine_releases_all_who_wait(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running() as server:
        core: Any = server.client._engine.loaded.core
        name = place.partition(".")[2]
        usual, left = getattr(core, name), [1]

        def fail(*args: Any) -> Any:
            if left:
                left.pop()
                raise RuntimeError("a bug")
            return usual(*args)

        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.append(server.chat("x" * 200, timeout=60).status))
            for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        eventually(lambda: server.requests >= 1, "nothing runs")
        monkeypatch.setattr(core, name, fail)
        if name == "abort_request":
            server.client.abort_all()
        for thread in threads:
            thread.join(PATIENCE_SECONDS)
        assert len(found) == 6 and set(found) <= {200, 500}
        monkeypatch.undo()
        server.wait_idle()
        assert answer(server, "works again") == "works again"


OPERATIONS = ("ask", "ask", "ask", "abort", "reset", "unload", "reload", "wait")


async def life(seed: int) -> None:
    """An engine from its birth to its end, whatever is asked of it meanwhile."""
    chance = random.Random(seed)
    client: AsyncClient = EngineClient(
        deliver_to_loops, "mock://echo", "cpu",
        model_lib=None, mode="local", engine_config=EngineConfig(), trace=None,
    )  # fmt: skip

    async def ask(name: str) -> None:
        try:
            config = GenerationConfig(max_tokens=chance.randrange(1, 40))
            part = prompt_part("x" * chance.randrange(1, 40), config, name, client.model)
            reader = await begin(client, [part])
            ends = [chunk.usage_json async for _, chunk in reader if chunk.usage_json is not None]
            assert len(ends) == 1
        except MLCError:  # the model was closed in this moment
            pass

    tasks: list[asyncio.Task[None]] = []
    for i in range(chance.randrange(1, 12)):
        match chance.choice(OPERATIONS):
            case "ask":
                tasks.append(asyncio.ensure_future(ask(str(i))))
            case "abort":
                client.abort(str(chance.randrange(i + 1)))
            case "reset":
                client.reset()
            case "unload" | "reload" as name:
                tasks.append(asyncio.ensure_future(asyncio.to_thread(getattr(client, name))))
            case _:
                await asyncio.sleep(chance.random() * 0.003)
    if chance.random() < 0.5:
        await asyncio.sleep(chance.random() * 0.005)
    ends = [asyncio.to_thread(client.terminate) for _ in range(chance.randrange(1, 3))]
    await asyncio.gather(*ends)
    found = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 60)
    assert all(one is None or isinstance(one, MLCError) for one in found), found


@pytest.mark.one_of(2)
@pytest.mark.parametrize("block", range(4))
def test_many_lives(block: int) -> None:
    before = threading.active_count()
    for seed in range(block * 10, block * 10 + 10):
        asyncio.run(life(seed))
    eventually(lambda: threading.active_count() <= before, "a thread is left")


@pytest.mark.slow
def test_a_thousand_lives_in_one_process() -> None:
    """No thread and no file is left, and memory does not grow with their number."""
    faulthandler.dump_traceback_later(1800, exit=True)
    try:
        for seed in range(1000, 1100):
            asyncio.run(life(seed))
        before = _taken()
        for seed in range(1100, 2000):
            asyncio.run(life(seed))
        eventually(lambda: _taken()[:2] <= before[:2], "a thread or a file is left", 30)
        assert _taken()[2] <= before[2] * 1.05
    finally:
        faulthandler.cancel_dump_traceback_later()


def _taken() -> tuple[int, int, int]:
    """Threads, open files, kilobytes in memory."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    memory = next(line.split()[1] for line in status if line.startswith("VmRSS"))
    own = Path("/proc/self")
    return len(list((own / "task").iterdir())), len(list((own / "fd").iterdir())), int(memory)
