"""A full server refuses before it looks at a body, and slows down those who come again at once."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest
from server_harness import JSON, Running, running
from threaded_harness import eventually

from mlc_llm.serve.server.app import ANSWERS, OTHER_ROUTES, V1_ROUTES
from mlc_llm.serve.server.errors import HTTPError, overloaded
from mlc_llm.serve.server.limits.refusing import DISCARDED_BYTES, MOST_HELD_S, PER_SECOND, Pace
from mlc_llm.serve.server.limits.settings import Limits, ServerSettings

PATH = "/v1/chat/completions"
BROKEN = b'{"messages": '
ROUTES = (*V1_ROUTES, *OTHER_ROUTES)


@pytest.fixture(scope="module")
def full() -> Iterator[Running]:
    """No answer has room."""
    with running(ServerSettings(port=0, limits=Limits(queue=1))) as server:
        admission = server.context.admission
        admission.answers = admission.limit
        yield server
        admission.answers = 0


def test_a_full_server_does_not_read_json(full: Running) -> None:
    reply = full.call("POST", PATH, BROKEN)
    assert reply.status == 503 and reply.error["code"] == "overloaded"
    assert int(reply.headers["retry-after"]) >= 1


ROUTES = [*V1_ROUTES, *OTHER_ROUTES]


@pytest.mark.parametrize(
    ("method", "path", "endpoint"), ROUTES, ids=[f"{method} {path}" for method, path, _ in ROUTES]
)
def test_only_requests_for_answers_are_refused_early(
    full: Running, method: str, path: str, endpoint: object
) -> None:
    if method == "POST":
        status = full.call("POST", path, BROKEN).status
        assert (status == 503) == (endpoint in ANSWERS), f"{path}: {status}"
    elif "{" not in path:
        assert full.call(method, path).status == 200


@pytest.mark.parametrize("size", [100, 200_000])
def test_a_connection_goes_on_behind_a_refusal(full: Running, size: int) -> None:
    connection = full.connect()
    try:
        for _ in range(3):
            connection.request("POST", PATH, BROKEN + b" " * size, JSON)
            reply = connection.getresponse()
            assert reply.status == 503 and reply.read()
            own = connection.sock
            connection.request("GET", "/health")
            assert connection.getresponse().read() and connection.sock is own is not None
    finally:
        connection.close()


def test_a_large_body_is_not_read(full: Running) -> None:
    connection = full.connect()
    try:
        connection.putrequest("POST", PATH)
        connection.putheader("Content-Length", str(DISCARDED_BYTES + 1))
        connection.endheaders()
        reply = connection.getresponse()
        assert reply.status == 503 and reply.getheader("connection") == "close"
    finally:
        connection.close()


def test_refusals_are_counted(full: Running) -> None:
    before = full.context.admission.refused
    full.call("POST", PATH, BROKEN)
    assert full.context.admission.refused == before + 1
    page = full.call("GET", "/metrics").data.decode()
    line = next(one for one in page.splitlines() if 'reason="overloaded"' in one)
    assert float(line.split()[-1]) >= before + 1


def test_others_do_not_wait_behind_refusals_that_are_held_back() -> None:
    settings = ServerSettings(port=0, limits=Limits(queue=1))
    with running(settings) as server:
        admission, pace = server.context.admission, server.context.pace
        admission.answers, pace._next = admission.limit, pace._clock() + MOST_HELD_S
        released = threading.Event()

        async def sleep(_seconds: float) -> None:
            while not released.is_set():
                await asyncio.sleep(0.005)

        pace._sleep = sleep  # type: ignore[method-assign]
        thread = threading.Thread(target=server.call, args=("POST", PATH, BROKEN))
        thread.start()
        eventually(lambda: pace.held == 1, "it is not held back")
        assert server.call("GET", "/health").status == 200
        assert pace.held == 1
        released.set()
        thread.join()
        eventually(lambda: pace.held == 0, "it is still held back")
        admission.answers = 0


def paced(most: int = 8) -> tuple[Pace, list[float]]:
    now = [100.0]

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    return Pace(lambda: most, lambda: now[0], sleep), now


def test_the_pace_of_a_storm() -> None:
    pace, now = paced()
    step = 1 / PER_SECOND
    assert [pace.delay() for _ in range(4)] == pytest.approx([0, step, 2 * step, 3 * step])
    now[0] += 10
    assert pace.delay() == 0
    delays = [pace.delay() for _ in range(1000)]
    assert MOST_HELD_S - step < max(delays) <= MOST_HELD_S
    later = sorted(delays[300:])  # evenly over the second half
    assert later[0] == pytest.approx(MOST_HELD_S / 2)
    assert later[len(later) // 2] == pytest.approx(0.75 * MOST_HELD_S, rel=0.1)
    now[0] += MOST_HELD_S + step
    assert pace.delay() == 0  # a storm is forgotten at once


def test_only_so_many_are_held_back() -> None:
    pace, _ = paced(most=0)
    assert [pace.delay() for _ in range(1000)] == [0] * 1000


def test_connections_are_left_for_others(full: Running) -> None:
    context = full.context
    most, limits = context.pace._most(), context.settings.limits
    assert 0 < most < limits.connections - context.admission.limit


def test_the_time_that_a_refusal_was_held_back_counts() -> None:
    pace, now = paced()
    pace._next = now[0] + 1.02

    async def hold(error: HTTPError) -> dict[str, str]:
        await pace.hold(error)
        return error.headers

    assert asyncio.run(hold(overloaded("full", retry_s=7))) == {"retry-after": "6"}
    assert now[0] == pytest.approx(101.02)
    assert asyncio.run(hold(HTTPError(400, "bad"))) == {}
    assert pace.held == 0


def test_errors_of_other_apis_keep_their_form(full: Running) -> None:
    found = json.loads(full.call("POST", "/v1/messages", BROKEN).data)
    assert found["type"] == "error" and found["error"]["type"] == "overloaded_error"
    assert set(json.loads(full.call("POST", "/api/chat", BROKEN).data)) == {"error"}
