"""Who may call a server."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import Running, running
from starlette.routing import Route

from mlc_llm.errors import InvalidField
from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.guard import OPEN_PATHS
from mlc_llm.serve.server.settings import KEY_VARIABLE, ServerSettings, read_keys

KEYS = ("first-key", "zwei-schlüssel")


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running(ServerSettings(port=0, keys=KEYS)) as made:
        yield made


def routes(server: Running) -> list[tuple[str, str]]:
    found = [route for route in create_app(server.context).routes if isinstance(route, Route)]
    paths = [(route.path.replace("{model:path}", "x"), route.methods or set()) for route in found]
    return [(method, path) for path, methods in paths for method in sorted(methods)]


def test_every_route_needs_a_key(locked: Running) -> None:
    table = routes(locked)
    assert len(table) > 12
    for method, path in table:
        reply = locked.call(method, path)
        assert (reply.status == 401) == (path not in OPEN_PATHS), (method, path)
    reply = locked.call("GET", "/nothing")
    assert reply.status == 401 and reply.error["code"] == "invalid_api_key"
    assert reply.headers["www-authenticate"] == "Bearer"


def test_keys_are_taken_from_three_headers(locked: Running) -> None:
    for key in KEYS:
        sent = key.encode().decode("latin-1")
        for headers in (
            {"authorization": f"Bearer {sent}"},
            {"authorization": f"bearer  {sent}"},
            {"x-api-key": sent},
            {"api-key": sent},
        ):
            assert locked.call("GET", "/v1/models", headers=headers).status == 200, headers
    for wrong in ("first-ke", "first-key2", "\xff\xfe", "Bearer"):
        for name in ("authorization", "x-api-key"):
            value = f"Bearer {wrong}" if name == "authorization" else wrong
            assert locked.call("GET", "/v1/models", headers={name: value}).status == 401
    basic = {"authorization": "Basic first-key"}
    assert locked.call("GET", "/v1/models", headers=basic).status == 401


def test_keys_are_in_no_log(locked: Running, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        locked.call("GET", "/v1/models", headers={"authorization": "Bearer first-key"})
        locked.call("GET", "/v1/models", headers={"authorization": "Bearer wrong-key"})
    assert "first-key" not in caplog.text and "wrong-key" not in caplog.text


def test_foreign_host_names_are_refused(server: Running) -> None:
    port = server.port
    for host in ("localhost", f"localhost:{port}", f"127.0.0.1:{port}", f"[::1]:{port}"):
        assert server.call("GET", "/health", headers={"host": host}).status == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", ""):
        reply = server.call("GET", "/health", headers={"host": host})
        assert reply.status == 403 and reply.error["code"] == "unknown_host", host


def test_foreign_web_pages_are_refused(server: Running) -> None:
    own = f"127.0.0.1:{server.port}"
    good = {"origin": f"http://{own}", "host": own}
    assert server.call("GET", "/health", headers=good).status == 200
    for origin in ("https://evil.example", "null", f"http://{own}.evil.example"):
        reply = server.call("GET", "/v1/models", headers={"origin": origin, "host": own})
        assert reply.status == 403 and reply.error["code"] == "unknown_origin"
    assert "access-control-allow-origin" not in server.call("GET", "/health", headers=good).headers


def test_hosts_and_pages_can_be_allowed() -> None:
    settings = ServerSettings(
        port=0, allowed_hosts=("box.local",), allowed_origins=("https://page.example",)
    )
    with running(settings) as server:
        assert server.call("GET", "/health", headers={"host": "Box.local:80"}).status == 200
        headers = {"origin": "https://page.example"}
        reply = server.call("GET", "/health", headers=headers)
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
        preflight = {**headers, "access-control-request-method": "POST"}
        assert server.call("OPTIONS", "/v1/models", headers=preflight).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(InvalidField, match="--api-key"):
        ServerSettings(host=host).check()
    ServerSettings(host=host, keys=("a",)).check()
    ServerSettings(host=host, allow_no_key=True).check()


def test_local_addresses_need_none() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        ServerSettings(host=host).check()
    ServerSettings(host="0.0.0.0", unix_socket=Path("x")).check()


def test_keys_come_from_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\ntwo\n", encoding="utf-8")
    monkeypatch.setenv(KEY_VARIABLE, "three")
    assert read_keys(["zero", "one"], file) == ("zero", "one", "two", "three")
    file.write_text("# none\n", encoding="utf-8")
    with pytest.raises(InvalidField, match="no key"):
        read_keys([], file)
    with pytest.raises(InvalidField, match="cannot be read"):
        read_keys([], tmp_path / "missing")


def test_a_certificate_needs_its_key() -> None:
    for pair in itertools.permutations((None, Path("x"))):
        with pytest.raises(InvalidField, match="--tls-cert"):
            ServerSettings(certificate=pair[0], certificate_key=pair[1]).check()
