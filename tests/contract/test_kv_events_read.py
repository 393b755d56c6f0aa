"""Our own reader of KV events, over real sockets. It tells what publishers hold, or nothing."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from test_kv_events import LONGEST_MS, Publishing, prompts
from threaded_harness import eventually

from mlc_llm.ray.prefix_choice import PrefixIndex
from mlc_llm.serve.kv_events.blocks import block_keys
from mlc_llm.serve.kv_events.subscriber import EventSubscriber

msgspec: Any = pytest.importorskip("msgspec", reason="needs `pip install msgspec`")
zmq: Any = pytest.importorskip("zmq", reason="needs `pip install pyzmq`")


class Index(PrefixIndex[str]):
    """What a subscriber has told."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = EventSubscriber(self)

    def holds(self, engine: Publishing, name: str) -> bool:
        return set(self.keys_of(name)) == engine.held()


def test_our_own_subscriber_knows_several_caches() -> None:
    index, engines = Index(), {"a": Publishing(topic=""), "b": Publishing(topic="")}
    for number, engine in enumerate(engines.values()):
        for prompt, salt, most in prompts(number + 10, 10):  # before anybody listens
            engine.serve(prompt, salt, most)
    for name, engine in engines.items():
        publisher = engine.publisher
        assert publisher.replay_endpoint is not None
        index.reader.follow(name, publisher.endpoint, publisher.replay_endpoint)
    for prompt, salt, most in prompts(30, 40):
        engines["a"].serve(prompt, salt, most)
        engines["b"].serve([3] * 64 + prompt, salt, most)
    for name, engine in engines.items():
        eventually(lambda name=name, engine=engine: index.holds(engine, name), name, 20)
    assert set(index.keys_of("a")) != set(index.keys_of("b"))
    index.reader.leave("a")
    eventually(lambda: not index.keys_of("a"), "it is still known", 20)
    assert index.holds(engines["b"], "b")
    index.reader.close()


def test_our_own_subscriber_forgets_what_it_cannot_know() -> None:
    index, engine = Index(), Publishing(topic="", buffer_steps=2)
    for token in range(8):
        engine.serve([token] * 64)
    publisher = engine.publisher
    assert engine.sent > 4 and publisher.replay_endpoint is not None
    index.reader.follow("a", publisher.endpoint, publisher.replay_endpoint)
    end = time.monotonic() + 20
    known = set[int]()
    while not known:  # messages pass by until it is connected
        assert time.monotonic() < end
        engine.serve([9] * 64)
        engine.core.reset()
        engine.serve([7] * 128)
        known = set(index.keys_of("a"))
        assert known <= set(block_keys([7] * 128)) | set(block_keys([9] * 64))
    eventually(lambda: index.holds(engine, "a"), "it does not know the cache again", 20)
    index.reader.close()


@pytest.mark.parametrize("served", [0, 3, 8, 30], ids=["none", "fewer", "as many", "more"])
def test_our_own_subscriber_notices_that_an_engine_was_started_anew(served: int) -> None:
    """At the same addresses. The first engine had served 8 prompts."""
    index, engine = Index(), Publishing(topic="")
    places = engine.publisher.endpoint, engine.publisher.replay_endpoint
    assert places[1] is not None
    index.reader.follow("a", places[0], places[1])
    for token in range(8):
        engine.serve([token] * 128)
    eventually(lambda: index.holds(engine, "a"), "the first engine is not known", 20)
    before, thread = set(index.keys_of("a")), engine.publisher._thread
    del engine
    gc.collect()
    thread.join(20)
    engine = Publishing(topic="", endpoint=places[0], replay_endpoint=places[1])
    for token in range(100, 100 + served):
        engine.serve([token] * 128)
    eventually(lambda: index.holds(engine, "a"), "the second engine is not known", 20)
    assert not before & set(index.keys_of("a"))
    engine.serve([7] * 128)
    eventually(lambda: index.holds(engine, "a"), "it is not heard any more", 20)
    index.reader.close()


class Stranger:
    """A program at an address that belonged to an engine, or was told as such."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.live, self.replay = self.context.socket(zmq.PUB), self.context.socket(zmq.ROUTER)
        ports = [one.bind_to_random_port("tcp://127.0.0.1") for one in (self.live, self.replay)]
        self.endpoint, self.replay_endpoint = (f"tcp://127.0.0.1:{port}" for port in ports)

    def answer(self, *messages: list[bytes]) -> None:
        """Answer a question for a replay with these."""
        assert self.replay.poll(LONGEST_MS)
        client, *_ = self.replay.recv_multipart()
        for one in messages:
            self.replay.send_multipart([client, b"", *one])
        self.replay.send_multipart([client, b"", b"", b"\xff" * 8, b""])


def test_our_own_subscriber_hears_no_stranger(caplog: pytest.LogCaptureFixture) -> None:
    """Neither live nor in a replay, whatever it says; and it goes on to hear the others."""
    index, engine, stranger = Index(), Publishing(topic="its own"), Stranger()
    index.reader.follow("a", stranger.endpoint, stranger.replay_endpoint, "of a")
    block = {"type": "BlockStored", "block_hashes": [7]}
    stored = msgspec.msgpack.encode([0.0, [block]])
    first, second = (number.to_bytes(8, "big") for number in range(2))
    wrong = [[b"of b", first, stored], [b"of a", b"\0", stored], [b"of a"], [b"", b"", b"", b""]]
    stranger.answer(*wrong)
    eventually(lambda: caplog.text.count("stranger was dropped") == 4, "4 replayed", 20)

    def are_dropped() -> bool:
        for one in wrong:
            stranger.live.send_multipart(one)
        return caplog.text.count("stranger was dropped") >= 8

    eventually(are_dropped, "the live ones", 20)
    assert not index.keys_of("a")
    stranger.live.send_multipart([b"of a", first, stored])  # this is what would count
    eventually(lambda: set(index.keys_of("a")) == {7}, "the publisher itself is not heard", 20)
    stranger.live.send_multipart([b"of a", second, b"\xc1"])
    eventually(lambda: not index.keys_of("a"), "what cannot be read is not forgotten", 20)
    publisher = engine.publisher
    assert publisher.replay_endpoint is not None
    index.reader.follow("b", publisher.endpoint, publisher.replay_endpoint, "its own")
    engine.serve([3] * 128)
    eventually(lambda: index.holds(engine, "b"), "the others are not heard any more", 20)
    index.reader.close()
    stranger.context.destroy(linger=0)
