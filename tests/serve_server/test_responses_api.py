"""The Responses API over real sockets, on the echo engine."""

from __future__ import annotations

import json

import pytest
from server_harness import JSON, Running, named_events

PATH = "/v1/responses"


@pytest.mark.parametrize("path", [PATH, "/responses"])
def test_a_whole_response(server: Running, path: str) -> None:
    reply = server.call("POST", path, {"input": "hello", "instructions": "S"})
    found = reply.json
    assert found["object"] == "response" and found["status"] == "completed"
    assert found["output"][0]["content"][0]["text"] == "Shello"
    assert found["usage"]["input_tokens"] == 6 and found["store"] is False
    assert "x-ignored-params" not in reply.headers
    server.wait_idle()


def test_a_streamed_response(server: Running) -> None:
    reply = server.call("POST", PATH, {"input": "hello", "stream": True})
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    found = named_events(reply.data)
    assert [one["sequence_number"] for one in found] == list(range(len(found)))
    deltas = [one["delta"] for one in found if one["type"] == "response.output_text.delta"]
    assert "".join(deltas) == "hello"
    assert found[-1]["type"] == "response.completed"
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "hello"
    assert found[0]["response"]["id"] == found[-1]["response"]["id"]
    server.wait_idle()


def test_what_is_stored_elsewhere_is_refused(server: Running) -> None:
    reply = server.call("POST", PATH, {"input": "a", "previous_response_id": "resp_1"})
    assert reply.status == 400 and reply.error["param"] == "previous_response_id"
    assert server.call("GET", f"{PATH}/resp_1").error["code"] == "not_found"
    reply = server.call("POST", PATH, {"input": "a", "store": True})
    assert reply.headers["x-ignored-params"] == "store" and reply.json["store"] is False


def test_a_response_that_is_ended_says_so(server: Running) -> None:
    connection = server.connect()
    body = {"input": "abc " * 600, "stream": True}
    connection.request("POST", PATH, json.dumps(body), JSON)
    reply = connection.getresponse()
    reply.read(3000)
    server.client.abort_all()
    rest = reply.read().decode().strip().split("\n\n")[-2:]
    connection.close()
    failed, last = (json.loads(one.split("data: ")[1]) for one in rest)
    assert failed["response"]["status"] == "failed"
    assert "ended by the server" in last["error"]["message"]
    server.wait_idle()
