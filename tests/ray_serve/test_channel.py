"""Messages between an ingress and a replica, over a real socket. No Ray."""

from __future__ import annotations

import asyncio

import pytest
from replica_harness import run

from mlc_llm.ray.wire import WireRequest
from mlc_llm.serve.data import RequestStreamOutput

pytest.importorskip("msgspec", reason="needs `pip install msgspec`")
zmq = pytest.importorskip("zmq", reason="needs `pip install pyzmq`")

from mlc_llm.ray.channel import Receiver, Sender  # noqa: E402
from mlc_llm.ray.messages import (  # noqa: E402
    FromReplica,
    ToReplica,
    UnreadableMessage,
    encode,
    read_by_ingress,
    read_by_replica,
    row_of,
)


def test_all_fields_of_outputs_come_through() -> None:
    sent = [
        RequestStreamOutput("r", [[1, 2]], [["{}", "[]"]], ["stop"], None, ["x"], [3], None, ["y"]),
        RequestStreamOutput("r", [[]], None, ["error"], error="no", prompt_logprob_json_strs=["1"]),
        RequestStreamOutput("r", [[]], None, ["length"], embedding=[0.5, -1.0]),
        RequestStreamOutput.usage("r", "{}"),
    ]
    rows = [row_of(one) for one in sent]
    message = FromReplica("s", 3, 2, 7, rows, [("q", "no")])
    found, outputs = read_by_ingress(encode(message))
    assert outputs == sent
    assert (found.session, found.number, found.heard, found.others) == ("s", 3, 2, 7)
    assert found.refused == [("q", "no")]


def test_all_fields_of_requests_come_through() -> None:
    wire = WireRequest(
        "r", (1, 2), "{}", "fp", "1.2", "salt", 3, is_embedding=True, second_at=1, keys=(2**64 - 1,)
    )
    found = read_by_replica(encode(ToReplica("s", 1, [wire], ["a"], True)))
    assert found == ToReplica("s", 1, [wire], ["a"], True)


@pytest.mark.parametrize(
    "wrong",
    [
        b"\xc1",
        b"",
        encode(["s", 1, [["r"]]]),
        encode(["s", 1, 0, 0, [["r", [[1]], None, [], None, [""], [0], None, [None], None, None]]]),
    ],
)
def test_what_is_no_message_is_refused(wrong: bytes) -> None:
    with pytest.raises(UnreadableMessage):
        read_by_ingress(wrong)
    if not wrong.startswith(encode(["s", 1, 0])[:1]):
        with pytest.raises(UnreadableMessage):
            read_by_replica(wrong)


def test_a_stranger_is_not_heard(caplog: pytest.LogCaptureFixture) -> None:
    """Without the key; the rest is read all the same."""

    async def work() -> None:
        found: asyncio.Queue[bytes] = asyncio.Queue()
        receiver, sender = Receiver("127.0.0.1", found.put_nowait), Sender()
        endpoint, _, key = receiver.address.rpartition("#")
        stranger = zmq.Context()
        socket = stranger.socket(zmq.PUSH)
        socket.connect(endpoint)
        for frames in ([b"0" * len(key), b"a"], [b"a"], [b"", b""]):
            socket.send_multipart(frames)
        socket.close(linger=1000)
        while len(caplog.records) < 3:
            await asyncio.sleep(0.01)
        sender.send(receiver.address, b"b")
        assert await found.get() == b"b" and found.empty()
        stranger.destroy()
        sender.close()
        receiver.close()

    run(work)


def test_a_sender_forgets_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc_llm.ray.channel.MOST_SOCKETS", 2)

    async def work() -> None:
        found: asyncio.Queue[bytes] = asyncio.Queue()
        receivers = [Receiver("127.0.0.1", found.put_nowait) for _ in range(4)]
        sender = Sender()
        for number in range(8):
            sender.send(receivers[number % 4].address, b"%d" % number)
            assert len(sender._sockets) <= 2
        assert sorted([await found.get() for _ in range(8)]) == [b"%d" % n for n in range(8)]
        for one in receivers:
            sender.forget(one.address)
            one.close()
        assert not sender._sockets
        sender.close()

    run(work)
