"""Requests on their way to replicas and back, over real sockets. No Ray."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from replica_harness import run

pytest.importorskip("msgspec", reason="needs `pip install msgspec`")
pytest.importorskip("zmq", reason="needs `pip install pyzmq`")

from fleet_harness import PROMPT, Node, Nodes, asked, cancelled, until, wire_for

from mlc_llm.errors import RequestError
from mlc_llm.protocol.debug_protocol import DebugConfig
from mlc_llm.ray import fleet as fleet_module
from mlc_llm.ray import link as link_module
from mlc_llm.ray import sessions as sessions_module
from mlc_llm.ray.remote_engine import ReplicaLost

LONG = PROMPT * 50
WHOLE = (list(PROMPT), ["stop", "usage"])


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Node]]:
    found = [Node(), Node()]
    yield found
    for one in found:
        one.close()


@pytest.fixture(autouse=True)
def nothing_is_left(nodes: list[Node]) -> Iterator[None]:
    yield
    for one in nodes:
        run(lambda one=one: until(lambda: one.is_idle))  # type: ignore[misc]
        assert not one.replica.waiting_tokens
        assert not one.replica._engine._readers
        one.replica._load.core.check_integrity()


def test_a_burst_is_one_message(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        await asked(fleet, wire_for(nodes[0], "first"))
        nodes[0].came.clear()
        wires = [wire_for(nodes[0], f"r{number}") for number in range(8)]
        found = await asyncio.gather(*(asked(fleet, one) for one in wires))
        assert found == [WHOLE] * 8
        assert [len(one.begin) for one in nodes[0].came] == [8]
        assert nodes[0].begun == 1
        await fleet.close()

    run(work)


def test_a_request_has_waited_since_it_came_to_the_ingress(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes have clocks of their own: here the ingress's is a day ahead."""
    day = 86_400.0
    monkeypatch.setattr(link_module, "perf_counter", lambda: time.perf_counter() + day)

    def waited() -> float:
        serving = nodes[0].replica._load.core.metrics()["serving"]
        return float(serving["queue_time"]["sum"])

    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        before = waited()
        wire = replace(wire_for(nodes[0], "r"), arrived=time.perf_counter() + day - 5)
        assert await asked(fleet, wire) == WHOLE
        assert 5 <= waited() - before < 60
        await fleet.close()

    run(work)


def test_a_replica_that_hangs_costs_its_own_answer_only(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    debug = DebugConfig(special_request="query_engine_metrics")

    async def work() -> None:
        fleet = Nodes(a=nodes[0], b=nodes[1]).fleet()
        await asyncio.gather(*(asked(fleet, wire_for(nodes[0], f"r{i}")) for i in range(8)))
        await until(lambda: len(fleet._of_replica) == 2)
        wire = wire_for(nodes[0], "question", (), debug_config=debug)
        assert len(await fleet.ask(wire, 60)) == 2
        with monkeypatch.context() as patched:
            patched.setattr(nodes[1].sessions, "_take", lambda _: None)
            (found,) = await fleet.ask(wire, 0.5)
        assert '"serving"' in str(found[-1].request_final_usage_json_str)
        await fleet.close()

    run(work)


def test_the_answer_is_that_of_the_replica(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        wire = wire_for(nodes[0], "r", n=3, max_tokens=5)
        assert await asked(fleet, wire) == (list(PROMPT[:5]), ["length"] * 3 + ["usage"])
        table = fleet._table._choice.loads["a"]
        assert (table.running, table.waiting_tokens) == (0, 0)
        await fleet.close()

    run(work)


def test_a_request_that_nobody_wants_is_aborted(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        stream = fleet.send(wire_for(nodes[0], "r", LONG))
        await anext(stream)  # type: ignore[arg-type]
        assert nodes[0].sessions.running == 1
        await stream.aclose()  # type: ignore[attr-defined]
        await until(lambda: nodes[0].is_idle)
        task = asyncio.ensure_future(asked(fleet, wire_for(nodes[0], "s", LONG)))
        await asyncio.sleep(0)  # it has not been sent yet
        await cancelled(task)
        await until(lambda: nodes[0].is_idle)
        await fleet.close()

    run(work)


def test_an_abort_may_come_before_the_grammar_is_made(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        schema = '{"type": "object", "properties": {"a": {"type": "string"}}}'
        form = {"type": "json_object", "schema": schema}
        wires = [
            wire_for(nodes[0], f"g{number}", LONG, response_format=form) for number in range(6)
        ]
        assert nodes[0].replica.takes_long(wires[0])
        tasks = [asyncio.ensure_future(asked(fleet, one)) for one in wires]
        await until(lambda: bool(nodes[0].came))
        for one in tasks:
            await cancelled(one)
        await until(lambda: nodes[0].is_idle)
        await fleet.close()

    run(work)


def test_requests_of_a_replica_that_dies_are_lost(nodes: list[Node]) -> None:
    """The other one takes what comes then, and the dead one is not asked again although it is
    still named."""

    async def work() -> None:
        both = Nodes(a=nodes[0], b=nodes[1])
        fleet = both.fleet()
        await until(lambda: len(fleet._of_replica) == 2)
        streams = [fleet.send(wire_for(nodes[0], f"r{number}", LONG)) for number in range(12)]
        for one in streams:
            await anext(one)  # type: ignore[arg-type]
        there = nodes[0].sessions.running
        assert 0 < there < 12
        assert nodes[0].killed is not None
        nodes[0].killed.set()
        lost = 0
        for one in streams:
            try:
                async for _ in one:
                    pass
            except ReplicaLost:
                lost += 1
        assert lost == there
        fleet.update(dict.fromkeys(both.all))
        assert [await asked(fleet, wire_for(nodes[0], "s"))] == [WHOLE]
        assert nodes[0].begun == 1 and list(fleet._of_replica) == ["b"]
        await fleet.close()

    run(work)


def test_a_replica_that_goes_ends_its_answers(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        long = asyncio.ensure_future(asked(fleet, wire_for(nodes[0], "r", LONG)))
        await until(lambda: nodes[0].sessions.running == 1)
        fleet.update({})
        waits = asyncio.ensure_future(asked(fleet, wire_for(nodes[0], "s")))
        assert await long == (list(LONG), ["stop", "usage"])
        await until(lambda: not nodes[0].sessions._sessions)
        assert nodes[0].came[-1].is_last and not waits.done()
        fleet.update({"a": None})  # it is there again
        assert await waits == WHOLE
        await fleet.close()

    run(work)


def test_at_the_end_nothing_waits_for_a_replica(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes().fleet()
        waits = asyncio.ensure_future(asked(fleet, wire_for(nodes[0], "r")))
        await asyncio.sleep(0.01)
        assert not waits.done()
        fleet.ending()
        with pytest.raises(RequestError, match="no replica is left"):
            await waits
        await fleet.close()

    run(work)


def test_what_a_replica_refuses_ends_with_its_reason(nodes: list[Node]) -> None:
    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        wire = wire_for(nodes[0], "r")
        for wrong, reason in (
            ({"fingerprint": "fp_other"}, "WrongReplica: r: made for fp_other"),
            ({"version": "0.0.1"}, r"version 0\.0\.1"),
        ):
            with pytest.raises(RequestError, match=reason):
                await asked(fleet, type(wire)(**{**vars(wire), **wrong}))
        assert await asked(fleet, wire) == WHOLE
        await fleet.close()

    run(work)


@pytest.mark.parametrize("way", ["to the replica", "from the replica"])
def test_a_lost_message_sends_requests_elsewhere(
    nodes: list[Node], way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session begins anew, and nothing of the old one is left."""
    monkeypatch.setattr(fleet_module, "AGAIN_S", 0.01)

    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        await until(lambda: "a" in fleet._of_replica)
        stream = fleet.send(wire_for(nodes[0], "r", LONG))
        await anext(stream)  # type: ignore[arg-type]
        if way == "to the replica":
            fleet._of_replica["a"]._sent += 1
            other = asyncio.ensure_future(asked(fleet, wire_for(nodes[0], "s")))
            with pytest.raises(ReplicaLost):
                await other
        else:
            next(iter(nodes[0].sessions._sessions.values())).sent += 1
        with pytest.raises(ReplicaLost):
            async for _ in stream:
                pass
        assert await asked(fleet, wire_for(nodes[0], "t")) == WHOLE
        assert nodes[0].begun == 2
        await fleet.close()

    run(work)


def test_a_message_that_is_never_read_is_lost(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "ARRIVAL_S", 0.05)

    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        await until(lambda: "a" in fleet._of_replica)
        fleet._of_replica["a"]._send = lambda message: None  # type: ignore[method-assign]
        with pytest.raises(ReplicaLost, match="messages to the replica"):
            await asked(fleet, wire_for(nodes[0], "r"))
        await fleet.close()

    run(work)


def test_requests_of_a_silent_replica_go_elsewhere(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it says does not come: its messages are thrown away."""
    monkeypatch.setattr(fleet_module, "SILENCE_S", 0.2)
    monkeypatch.setattr(fleet_module, "LIVING_S", 0.05)

    async def work() -> None:
        fleet = Nodes(a=nodes[0]).fleet()
        await until(lambda: "a" in fleet._of_replica)
        fleet._receiver._take = lambda message: None
        with pytest.raises(ReplicaLost, match="said nothing"):
            await asked(fleet, wire_for(nodes[0], "r"))
        await fleet.close()

    run(work)


def test_answers_of_a_silent_ingress_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_module, "SILENCE_S", 0.3)
    monkeypatch.setattr(sessions_module, "PULSE_S", 0.1)
    slow = Node("mock://echo?step_ms=10")

    async def work() -> None:
        fleet = Nodes(a=slow).fleet()
        with pytest.raises(ReplicaLost):
            await asked(fleet, wire_for(slow, "r", LONG))
        await until(lambda: slow.is_idle)
        await fleet.close()

    try:
        run(work)
    finally:
        slow.close()


def test_the_one_with_fewer_requests_counts_those_of_others(nodes: list[Node]) -> None:
    """A second ingress sees what the first one has there."""

    async def work() -> None:
        both = Nodes(a=nodes[0], b=nodes[1])
        first, second = Nodes(a=nodes[0]).fleet(), both.fleet(by_prefix=False)
        await until(lambda: len(second._of_replica) == 2)
        streams = [first.send(wire_for(nodes[0], f"r{number}", LONG)) for number in range(4)]
        for one in streams:
            await anext(one)  # type: ignore[arg-type]
        await until(lambda: second._table._choice.loads["a"].others == 4)
        for number in range(6):
            await asked(second, wire_for(nodes[0], f"s{number}"))
        assert not any(one.begin and one.begin[0].request_id[0] == "s" for one in nodes[0].came)
        for one in streams:
            await one.aclose()  # type: ignore[attr-defined]
        await first.close()
        await second.close()

    run(work)
