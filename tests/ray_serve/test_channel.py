"""Outputs on their way from a replica to an ingress, over a real socket. No Ray."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from replica_harness import run, settings

from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.ray.replica import ModelReplica
from mlc_llm.ray.wire import WireRequest
from mlc_llm.serve.data import RequestStreamOutput

pytest.importorskip("msgspec", reason="needs `pip install msgspec`")
zmq = pytest.importorskip("zmq", reason="needs `pip install pyzmq`")
channel = pytest.importorskip("mlc_llm.ray.channel")

PROMPT = tuple(b"every word comes back once, in order")


@pytest.fixture
def one() -> Iterator[ModelReplica]:
    sender, given = channel.Sender(), settings()
    found = ModelReplica(given, given.engine, sender.send)
    yield found
    found.close()
    sender.close()


def wire_for(one: ModelReplica, name: str, **more: object) -> WireRequest:
    config = GenerationConfig(max_tokens=30, n=2, **more)  # type: ignore[arg-type]
    text = config.merged_over(one._load.bundle.defaults).asjson()
    return WireRequest(name, PROMPT, text, one._load.fingerprint)


def joined(outputs: list[RequestStreamOutput]) -> tuple[list[int], list[str], int]:
    """The tokens of the first sequence, how all ended, and the tokens of all."""
    *others, last = outputs
    tokens = [i for output in others for i in output.group_delta_token_ids[0]]
    ends = [end for output in others for end in output.group_finish_reason if end is not None]
    assert last.request_final_usage_json_str is not None
    usage = json.loads(last.request_final_usage_json_str)
    return tokens, ends, usage["completion_tokens"]


async def collected(queue: asyncio.Queue[list[RequestStreamOutput]]) -> list[RequestStreamOutput]:
    found: list[RequestStreamOutput] = []
    while not found or found[-1].request_final_usage_json_str is None:
        found += await queue.get()
    return found


def test_outputs_are_those_of_the_replica(one: ModelReplica) -> None:
    async def work() -> None:
        receiver = channel.Receiver("127.0.0.1")
        names = [f"r{number}" for number in range(8)]
        queues = [receiver.open(name) for name in names]
        await asyncio.gather(
            *(one.generate_to(wire_for(one, name), receiver.address) for name in names)
        )
        assert not one.waiting_tokens
        alone = [output async for some in one.generate(wire_for(one, "alone")) for output in some]
        for queue in queues:
            assert joined(await collected(queue)) == joined(alone)
        receiver.close()

    run(work)


def test_all_fields_come_through() -> None:
    async def work() -> None:
        receiver, sender = channel.Receiver("127.0.0.1"), channel.Sender()
        queue = receiver.open("r")
        sent = [
            RequestStreamOutput("other", [[1]], None, [None]),
            RequestStreamOutput(
                "r", [[1, 2]], [["{}", "[]"]], ["stop"], None, ["x"], [3], None, ["y"]
            ),
            RequestStreamOutput(
                "r", [[]], None, ["error"], error="no", prompt_logprob_json_strs=["1"]
            ),
            RequestStreamOutput("r", [[]], None, ["length"], embedding=[0.5, -1.0]),
            RequestStreamOutput.usage("r", "{}"),
        ]
        sender.send(receiver.address, sent)
        assert await collected(queue) == sent[1:]
        sender.close()
        receiver.close()

    run(work)


def test_a_stranger_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Without the key, or with what is no output: the rest is read all the same."""

    async def work() -> None:
        receiver, sender = channel.Receiver("127.0.0.1"), channel.Sender()
        queue = receiver.open("r")
        endpoint, _, key = receiver.address.rpartition("#")
        wrong = channel._encode([channel._row(RequestStreamOutput("r", [[9]], None, ["stop"]))])
        stranger = zmq.Context()
        socket = stranger.socket(zmq.PUSH)
        socket.connect(endpoint)
        for frames in ([b"0" * 32, wrong], [wrong], [b"", b""], [key.encode(), b"\xc1"]):
            socket.send_multipart(frames)
        odd = [["r", [[1]], None, [], None, [""], [0], None, [None], None, None]]
        socket.send_multipart([key.encode(), channel._encode(odd)])
        socket.close(linger=1000)
        while len(caplog.records) < 5:
            await asyncio.sleep(0.01)
        sender.send(receiver.address, [RequestStreamOutput.usage("r", "{}")])
        assert await collected(queue) == [RequestStreamOutput.usage("r", "{}")]
        stranger.destroy()
        sender.close()
        receiver.close()

    run(work)


def test_a_request_that_nobody_waits_for_is_aborted(one: ModelReplica) -> None:
    async def work() -> None:
        receiver = channel.Receiver("127.0.0.1")
        queue = receiver.open("r")
        slow = wire_for(one, "r", debug_config={"ignore_eos": True})
        slow = WireRequest("r", PROMPT * 100, slow.config.replace("30", "3000"), slow.fingerprint)
        task = asyncio.ensure_future(one.generate_to(slow, receiver.address))
        await queue.get()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while (await one.metrics())["serving"]["num_requests_running"]:  # type: ignore[index]
            await asyncio.sleep(0.01)
        receiver.close()

    run(work)
