"""The OpenAPI file says what the server has, takes and gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from server_harness import Running, running

from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.routes.operations import OPERATIONS
from mlc_llm.serve.server.routes.page import PAGE_PATHS

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
COMPLETION: dict[str, Any] = {"prompt": "a", "max_tokens": 1}
BODIES = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}


@pytest.fixture(scope="module")
def debugged() -> Iterator[Running]:
    with running(ServerSettings(port=0, debug=True)) as made:
        yield made


def file_of(server: Running) -> dict[str, Any]:
    reply = server.call("GET", "/openapi.json")
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    found: dict[str, Any] = reply.json
    return found


def routes_of(server: Running) -> set[tuple[str, str]]:
    return {
        (method, re.sub(r":\w+\}", "}", route.path))
        for route in create_app(server.context).routes
        if route.path not in PAGE_PATHS  # type: ignore[attr-defined]
        for method in route.methods - {"HEAD"}  # type: ignore[attr-defined]
    }


def test_every_route_is_in_it(debugged: Running) -> None:
    found = file_of(debugged)
    listed = {(method.upper(), path) for path, one in found["paths"].items() for method in one}
    assert listed == routes_of(debugged)
    assert ("POST", "/v1/chat/completions") in listed and ("POST", "/completions") in listed


def test_every_route_is_described(debugged: Running) -> None:
    """A new route gets a line in `operations.py`."""
    plain = {path.removeprefix("/v1") for _, path in routes_of(debugged)}
    assert plain <= set(OPERATIONS)
    names = [
        one["operationId"] for path in file_of(debugged)["paths"].values() for one in path.values()
    ]
    assert len(names) == len(set(names))


def test_routes_that_are_not_enabled_are_not_listed(server: Running) -> None:
    assert not [path for path in file_of(server)["paths"] if path.startswith("/debug")]


def test_references_lead_somewhere(debugged: Running) -> None:
    found = file_of(debugged)
    names = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(found))
    assert {"ChatCompletionRequest", "ErrorResponse"} <= set(names)
    assert set(names) <= set(found["components"]["schemas"])


def numbers() -> list[tuple[str, str, int | float, int | float]]:
    """Route, field, least and greatest value of each number that the file names."""
    with running() as server:
        found = file_of(server)
    listed = []
    for path in BODIES:
        schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = schema["schema"]["$ref"].rsplit("/", 1)[-1]
        for field, one in found["components"]["schemas"][name]["properties"].items():
            for choice in one.get("anyOf", []):
                if "minimum" in choice:
                    listed.append(
                        (path, field, choice["minimum"], choice.get("maximum", 2**31 - 1))
                    )
    return listed


def test_numbers_are_taken_up_to_their_ends_and_no_further(server: Running) -> None:
    listed = numbers()
    fields = {field for _, field, _, _ in listed}
    assert {"n", "temperature", "top_p", "seed", "max_tokens", "max_completion_tokens"} <= fields
    for path, field, low, high in listed:
        more = {"logprobs": True} if field == "top_logprobs" else {}
        for value, status in ((low, 200), (high, 200), (low - 1, 400), (high + 1, 400)):
            if field == "n" and value == high:
                continue  # it is valid, but a queue may lack the room
            reply = server.call("POST", path, {**BODIES[path], **more, field: value})
            assert reply.status == status, (path, field, value, reply.data)


def test_null_is_taken_where_the_file_says_so(server: Running) -> None:
    found = file_of(server)
    for path, body in BODIES.items():
        schema = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        name = schema["schema"]["$ref"].rsplit("/", 1)[-1]
        properties = found["components"]["schemas"][name]["properties"]
        nullable = [
            field for field, one in properties.items() if {"type": "null"} in one.get("anyOf", [])
        ]
        assert len(nullable) > 15
        reply = server.call("POST", path, {**dict.fromkeys(nullable), **body})
        assert reply.status == 200, reply.data
