"""KV events over real ZeroMQ sockets, read as vLLM's own readers do.

A subscriber that knows nothing but the messages rebuilds the cache's blocks, after random traffic
and after losses.
"""

from __future__ import annotations

import gc
import random
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.data import TokenData
from mlc_llm.serve.kv_events.blocks import BLOCK_TOKENS, block_keys, root_key, salt_digest
from mlc_llm.serve.kv_events.ledger import BlockLedger
from mlc_llm.serve.kv_events.publisher import EventPublisher
from mlc_llm.serve.kv_events.settings import KVEventsConfig
from mlc_llm.serve.opening.open_engine import open_engine
from mlc_llm.serve.request import Request

msgspec: Any = pytest.importorskip("msgspec", reason="needs `pip install msgspec`")
zmq: Any = pytest.importorskip("zmq", reason="needs `pip install pyzmq`")

HERE = "tcp://127.0.0.1:0"
LONGEST_MS = 20_000


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """The fields of vLLM 0.33, in its order."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int | None = None


class OldBlockStored(msgspec.Struct, array_like=True, tag="BlockStored"):
    """The fields of vLLM 0.19."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class OldBlockRemoved(msgspec.Struct, array_like=True, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class OldAllBlocksCleared(msgspec.Struct, array_like=True, tag="AllBlocksCleared"):
    pass


class OldBatch(msgspec.Struct, array_like=True):
    ts: float
    events: list[OldBlockStored | OldBlockRemoved | OldAllBlocksCleared]
    data_parallel_rank: int | None = None


class Subscriber:
    """A reader of events, with the sockets that vLLM's example has."""

    def __init__(self, publisher: EventPublisher, topic: str = "", kind: type = Batch) -> None:
        self.context = zmq.Context()
        self.live = self.context.socket(zmq.SUB)
        self.live.connect(publisher.endpoint)
        self.live.setsockopt_string(zmq.SUBSCRIBE, topic)
        self.replay = self.context.socket(zmq.DEALER)
        if publisher.replay_endpoint is not None:
            self.replay.connect(publisher.replay_endpoint)
        self.decoder = msgspec.msgpack.Decoder(kind)
        self.topic, self.next = topic, 0
        self.blocks: dict[int, tuple[int | None, tuple[int, ...]]] = {}

    def ask(self) -> None:
        """Take all that is kept from `next` on."""
        self.replay.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            assert self.replay.poll(LONGEST_MS), "no answer"
            empty, topic, number, payload = self.replay.recv_multipart()
            assert empty == b""
            if not payload:
                assert number == (-1).to_bytes(8, "big", signed=True)
                return
            assert topic == self.topic.encode()
            self.take(int.from_bytes(number, "big"), payload)

    def hear(self) -> int:
        """Wait for one message. Returns its number."""
        assert self.live.poll(LONGEST_MS), "no message"
        topic, number, payload = self.live.recv_multipart()
        assert topic == self.topic.encode() and len(number) == 8
        found = int.from_bytes(number, "big")
        if found > self.next:
            self.ask()
        self.take(found, payload)
        return found

    def take(self, number: int, payload: bytes) -> None:
        if number < self.next:
            return
        assert number == self.next
        self.next += 1
        batch = self.decoder.decode(payload)
        assert batch.data_parallel_rank == 0
        for event in batch.events:
            self.take_event(event)

    def take_event(self, event: Any) -> None:
        if isinstance(event, (AllBlocksCleared, OldAllBlocksCleared)):
            self.blocks.clear()
        elif isinstance(event, (BlockRemoved, OldBlockRemoved)):
            for key in event.block_hashes:
                del self.blocks[key]
        else:
            assert event.block_size == BLOCK_TOKENS and event.lora_id is None
            parent = event.parent_block_hash
            assert parent is None or parent in self.blocks
            for at, key in enumerate(event.block_hashes):
                tokens = event.token_ids[at * BLOCK_TOKENS : (at + 1) * BLOCK_TOKENS]
                self.blocks[key] = (parent, tuple(tokens))
                parent = key

    def join(self, engine: Publishing) -> None:
        """Wait until the live socket is connected: until then, messages pass by."""
        for _ in range(1000):
            engine.publisher.publish([])
            if self.live.poll(20):
                break
        self.hear_all(engine)

    def hear_all(self, engine: Publishing) -> None:
        """Take all messages that there are."""
        sent = engine.sent
        while self.next < sent:
            self.hear()

    def close(self) -> None:
        self.context.destroy(linger=0)


class Publishing:
    """The echo engine's core, over caches of three sequences, and its publisher."""

    def __init__(self, **options: Any) -> None:
        events = KVEventsConfig(
            **{"endpoint": HERE, "replay_endpoint": HERE, "topic": "kv", **options}
        )
        config = EngineConfig(
            model="mock://echo",
            kv_events=events,
            max_num_sequence=4,
            prefix_cache_max_num_recycling_seqs=3,
        )
        self.core = open_engine(config, "cpu").core
        ledger = self.core.prefix_cache.observer
        assert isinstance(ledger, BlockLedger) and isinstance(ledger.publisher, EventPublisher)
        self.publisher = ledger.publisher
        self.asked = 0

    def serve(self, prompt: list[int], salt: str = "", most: int = 1) -> None:
        """One request, from its beginning to its end."""
        self.asked += 1
        self.add(prompt, salt, most)
        while not self.core.is_idle:
            self.core.step()

    def add(self, prompt: list[int], salt: str, most: int) -> str:
        self.asked += 1
        config = GenerationConfig(max_tokens=most)
        request = Request(str(self.asked), [TokenData(prompt)], config, cache_salt=salt)
        self.core.add_request(request)
        return str(self.asked)

    def held(self) -> set[int]:
        """The keys of all whole blocks in the radix trees."""
        found = set()
        for salt, tree in self.core.prefix_cache._trees.items():
            for seq_id in tree._ends:
                found |= set(block_keys(tree.get(seq_id), root_key(salt)))
        return found

    @property
    def sent(self) -> int:
        """Messages so far, once all have gone."""
        while self.publisher._waiting:
            threading.Event().wait(0.001)
        return self.publisher._number


@pytest.fixture(params=["map", "array"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[Publishing, Subscriber]]:
    kind = Batch if request.param == "map" else OldBatch
    engine = Publishing(form=request.param)
    subscriber = Subscriber(engine.publisher, "kv", kind)
    subscriber.join(engine)
    yield engine, subscriber
    subscriber.close()


def prompts(seed: int, count: int) -> Iterator[tuple[list[int], str, int]]:
    """Conversations that begin alike, with their salts and lengths."""
    chosen = random.Random(seed)
    for _ in range(count):
        runs = chosen.choices((30, 64, 128, 190), k=chosen.randint(1, 3))
        prompt = [token for run in runs for token in [chosen.randint(1, 2)] * run]
        yield prompt, chosen.choice(("", "", "salt")), chosen.randint(1, 70)


def test_a_subscriber_knows_the_cache(both: tuple[Publishing, Subscriber]) -> None:
    engine, subscriber = both
    for prompt, salt, most in prompts(1, 60):
        engine.serve(prompt, salt, most)
        if engine.asked % 50 == 0:
            engine.core.reset()
        subscriber.hear_all(engine)
        assert set(subscriber.blocks) == engine.held()
    assert engine.publisher._number > 30
    for key, (parent, tokens) in subscriber.blocks.items():
        roots = [root_key(), root_key("salt")] if parent is None else [parent]
        assert key in [block_keys(tokens, root)[0] for root in roots]


def test_requests_that_run_together_are_aborted_and_pushed_out() -> None:
    engine = Publishing()
    subscriber = Subscriber(engine.publisher, "kv")
    subscriber.join(engine)
    chosen, running = random.Random(5), list[str]()
    for prompt, salt, most in prompts(2, 80):
        running.append(engine.add(prompt, salt, most))
        for _ in range(chosen.randint(0, 6)):
            engine.core.step()
        if chosen.random() < 0.3:
            engine.core.abort_request(chosen.choice(running))
        subscriber.hear_all(engine)
        assert set(subscriber.blocks) == engine.held()
    subscriber.close()


def test_what_was_lost_is_asked_for_again() -> None:
    engine = Publishing()
    subscriber = Subscriber(engine.publisher, "kv")
    subscriber.join(engine)
    lost = 0
    for number, (prompt, salt, most) in enumerate(prompts(3, 40)):
        before = engine.sent
        engine.serve(prompt, salt, most)
        while before < engine.sent:
            assert subscriber.live.poll(LONGEST_MS)
            if number % 3:  # these never come
                subscriber.live.recv_multipart()
                lost += 1
            else:
                subscriber.hear()
            before += 1
    subscriber.ask()
    assert lost > 10
    assert set(subscriber.blocks) == engine.held()
    subscriber.close()


def test_who_comes_late_asks_for_all() -> None:
    engine = Publishing()
    for prompt, salt, most in prompts(4, 20):
        engine.serve(prompt, salt, most)
    assert engine.sent > 10
    subscriber = Subscriber(engine.publisher, "kv")
    subscriber.ask()
    assert set(subscriber.blocks) == engine.held()
    subscriber.close()


def test_only_so_many_messages_are_kept() -> None:
    engine = Publishing(buffer_steps=3)
    for token in range(10):
        engine.serve([token] * 64)
    sent = engine.sent
    subscriber = Subscriber(engine.publisher, "kv")
    subscriber.next = sent - 3
    with pytest.raises(KeyError):  # what the last ones remove was stored by lost ones
        subscriber.ask()
    assert sent - 3 < subscriber.next <= sent
    subscriber.close()


def test_a_wrong_question_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    engine = Publishing()
    subscriber = Subscriber(engine.publisher, "kv")
    for question in ([b"", b"1"], [b""], [b"", b"12345678", b""], [b"", b"\xff" * 8]):
        subscriber.replay.send_multipart(question)
    assert subscriber.replay.poll(LONGEST_MS)
    assert subscriber.replay.recv_multipart()[2:] == [b"\xff" * 8, b""]  # nothing is so late
    subscriber.ask()
    assert subscriber.next == 1
    assert "8 bytes" in caplog.text
    subscriber.close()


def test_a_salt_has_a_name_that_does_not_show_it() -> None:
    engine = Publishing()
    subscriber = Subscriber(engine.publisher, "kv")
    engine.serve([1] * 128, "a secret")
    assert engine.sent
    subscriber.replay.send_multipart([b"", (1).to_bytes(8, "big")])
    assert subscriber.replay.poll(LONGEST_MS)
    payload = subscriber.replay.recv_multipart()[3]
    (event,) = subscriber.decoder.decode(payload).events
    assert event.extra_keys == [(salt_digest("a secret"),), None]
    assert b"secret" not in payload
    subscriber.close()


def test_an_engine_may_connect_to_its_subscriber() -> None:
    context = zmq.Context()
    listener = context.socket(zmq.SUB)
    listener.setsockopt_string(zmq.SUBSCRIBE, "")
    port = listener.bind_to_random_port("tcp://127.0.0.1")
    engine = Publishing(endpoint=f">tcp://127.0.0.1:{port}", topic="kv@here@echo")
    for token in range(100):  # what was sent before it was connected is lost
        engine.serve([token + 1] * 64)
        if listener.poll(200):
            break
    assert listener.recv_multipart()[0] == b"kv@here@echo"
    context.destroy(linger=0)


@pytest.mark.parametrize("field", ["endpoint", "replay_endpoint"])
def test_an_address_in_use_is_refused_by_name(field: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidField, match=rf"kv_events.{field} = .*in use"):
            Publishing(**{field: address})


def test_an_engine_that_is_gone_frees_its_address() -> None:
    engine = Publishing()
    endpoint, thread = engine.publisher.endpoint, engine.publisher._thread
    del engine
    gc.collect()
    thread.join(20)
    assert not thread.is_alive()
    assert Publishing(endpoint=endpoint).publisher.endpoint == endpoint
