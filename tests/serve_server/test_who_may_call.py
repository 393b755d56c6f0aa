"""Who may call a server."""

from __future__ import annotations

import itertools
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from server_harness import Reply, Running, running
from starlette.routing import Route
from threaded_harness import PATIENCE_SECONDS

from mlc_llm.errors import InvalidField
from mlc_llm.serve.server.app import create_app
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import KEY_VARIABLE, digest_of, read_keys
from mlc_llm.serve.server.routes.operations import OPEN_PATHS

KEYS = ("first-key", "zwei-schlüssel")


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running(ServerSettings(port=0, keys=read_keys(KEYS, None))) as made:
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


def test_what_is_open_is_open_on_purpose(locked: Running) -> None:
    """Probes, and the files of the chat page, which say nothing of this server."""
    page = [path for path in OPEN_PATHS if path == "/" or path.startswith("/page/")]
    assert set(OPEN_PATHS) == {"/health", "/ready", *page}
    for path in page:
        assert locked.call("GET", path).status == 200, path
        assert locked.call("POST", path).status == 405, path
    for path in ("/page/", "/page/index.html", "/page/../guard.py", "/page/%2e%2e/guard.py", "//"):
        assert locked.call("GET", path).status == 401, path


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
        assert repr(host) in reply.error["message"]


def test_the_host_of_a_whole_address_counts(server: Running, locked: Running) -> None:
    """RFC 9112, section 3.2.2. What `Host` says beside it does not matter."""
    own = f"127.0.0.1:{server.port}"
    for target in (f"http://{own}", f"HTTP://{own}", "https://localhost"):
        for host in (own, "evil.example"):
            reply = server.call("GET", f"{target}/health?a=b", headers={"host": host})
            assert reply.status == 200, (target, host)
    for target in ("evil.example", f"evil.example:{server.port}", "127.0.0.1.evil.example"):
        reply = server.call("GET", f"http://{target}/health", headers={"host": own})
        assert reply.status == 403 and reply.error["code"] == "unknown_host", target
    page = {"origin": "http://evil.example", "host": "evil.example"}
    reply = server.call("GET", f"http://{own}/health", headers=page)
    assert reply.status == 403 and reply.error["code"] == "unknown_origin"
    assert locked.call("GET", f"http://{own}/v1/models").status == 401


@pytest.mark.parametrize(
    "target",
    [
        *("http://user@localhost/health", "http://localhost:80@evil.example/health", "http://"),
        *("http:///health", "ftp://localhost/health", "/http://localhost/health"),
    ],
)
def test_addresses_that_are_no_server_s_are_no_routes(server: Running, target: str) -> None:
    assert server.call("GET", target, headers={"host": "localhost"}).status == 404


def test_a_probe_of_http_1_0_names_no_host(server: Running) -> None:
    for host in (b"", b"Host:\r\n", b"Host: evil.example\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), PATIENCE_SECONDS) as made:
            made.sendall(b"GET /health HTTP/1.0\r\n" + host + b"\r\n")
            assert made.recv(100).split(b" ")[1] == (b"403" if host else b"200")


def test_foreign_web_pages_are_refused(server: Running) -> None:
    own = f"127.0.0.1:{server.port}"
    good = {"origin": f"http://{own}", "host": own}
    assert server.call("GET", "/health", headers=good).status == 200
    for origin in ("https://evil.example", "null", f"http://{own}.evil.example"):
        reply = server.call("GET", "/v1/models", headers={"origin": origin, "host": own})
        assert reply.status == 403 and reply.error["code"] == "unknown_origin"
        assert repr(origin) in reply.error["message"]
    assert "access-control-allow-origin" not in server.call("GET", "/health", headers=good).headers


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a]b"])
def test_origins_that_are_no_addresses_are_refused(
    server: Running, locked: Running, origin: str
) -> None:
    for one in (server, locked):
        reply = one.call("GET", "/v1/models", headers={"origin": origin})
        assert reply.status == 403 and reply.error["code"] == "unknown_origin"


def test_hosts_and_pages_can_be_allowed() -> None:
    settings = ServerSettings(
        port=0, allowed_hosts=("box.local",), allowed_origins=("https://page.example",)
    )
    with running(settings) as server:
        assert server.call("GET", "/health", headers={"host": "Box.local:80"}).status == 200
        headers = {"origin": "https://page.example"}
        reply = server.call("GET", "/health", headers=headers)
        assert reply.headers["access-control-allow-origin"] == "https://page.example"
        assert reply.headers["access-control-expose-headers"] == "*"  # such as retry-after
        preflight = {**headers, "access-control-request-method": "POST"}
        assert server.call("OPTIONS", "/v1/models", headers=preflight).status == 200


@pytest.mark.parametrize(
    "origin", ["example.org", "https://example.org/", "https://Example.org", "localhost:3000", ""]
)
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(InvalidField, match=r"such as https://example\.org"):
        ServerSettings(allowed_origins=(origin,)).check()


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "http://[::1]:80", "chrome-extension://abc"]
)
def test_origins_that_browsers_send(origin: str) -> None:
    ServerSettings(allowed_origins=("https://a.example", origin)).check()


@pytest.mark.parametrize("host", ["http://box.local", "box.local:8000", "[::1]", ""])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    with pytest.raises(InvalidField, match=r"such as box\.local"):
        ServerSettings(allowed_hosts=(host,)).check()


@pytest.mark.parametrize("host", ["*", "box.local", "Box", "192.168.1.5", "fe80::1"])
def test_host_names(host: str) -> None:
    ServerSettings(allowed_hosts=(host,)).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org"])
def test_other_machines_need_a_key(host: str) -> None:
    with pytest.raises(InvalidField, match="--api-key"):
        ServerSettings(host=host).check()
    ServerSettings(host=host, keys=read_keys(["a"], None)).check()
    ServerSettings(host=host, allow_no_key=True).check()


def test_local_addresses_need_none() -> None:
    for host in ("127.0.0.1", "localhost", "::1", "127.0.0.2"):
        ServerSettings(host=host).check()
    ServerSettings(host="0.0.0.0", unix_socket=Path("x")).check()


def test_keys_come_from_three_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none\n\ntwo\n", encoding="utf-8")
    monkeypatch.setenv(KEY_VARIABLE, "three")
    found = read_keys(["zero", "one"], file)
    assert len(found) == 4
    for key in ("zero", "one", "two", "three"):
        tenant = found.find(key.encode())
        assert tenant is not None and tenant.digest == digest_of(key.encode())
    assert found.find(b"four") is None and found.find(b"") is None
    file.write_text("# none\n", encoding="utf-8")
    with pytest.raises(InvalidField, match="no key"):
        read_keys([], file)
    with pytest.raises(InvalidField, match="cannot be read"):
        read_keys([], tmp_path / "missing")


def test_a_certificate_needs_its_key() -> None:
    for pair in itertools.permutations((None, Path("x"))):
        with pytest.raises(InvalidField, match="--tls-cert"):
            ServerSettings(certificate=pair[0], certificate_key=pair[1]).check()


def admin_call(server: Running, path: str, key: str | None, model: str = "b") -> Reply:
    headers = {} if key is None else {"x-api-key": key}
    return server.call("POST", path, {"model": model}, headers)


def test_admins_open_and_close_models(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("plain\nroot name=ops admin\n", encoding="utf-8")
    settings = ServerSettings(port=0, keys=read_keys([], file))
    with running(settings, ("a=mock://echo", "b=mock://echo")) as server:
        for path in ("/models/load", "/models/unload"):
            assert admin_call(server, path, None).status == 401
            assert admin_call(server, path, "plain").error["code"] == "not_admin"
        assert admin_call(server, "/models/load", "root").json["state"] == "ready"
        assert admin_call(server, "/models/unload", "root").json["state"] == "closed"
        assert admin_call(server, "/models/unload", "root").json["state"] == "closed"
        assert admin_call(server, "/models/unload", "root", "a").json["state"] == "closed"
        assert admin_call(server, "/models/load", "root", "c").status == 404
        reply = server.call("POST", "/models/load", {"name": "b"}, {"x-api-key": "root"})
        assert reply.status == 400 and reply.error["param"] == "name"
        reply = server.call("GET", "/v1/models", headers={"x-api-key": "root"})
        assert [one["state"] for one in reply.json["data"]] == ["closed", "closed"]
        body = {"messages": [{"role": "user", "content": "hi"}]}
        reply = server.call("POST", "/v1/chat/completions", body, {"x-api-key": "plain"})
        assert reply.status == 200


def test_nobody_may_do_so_without_an_admin(server: Running, locked: Running) -> None:
    assert admin_call(server, "/models/load", None).error["code"] == "not_found"
    assert admin_call(locked, "/models/unload", "first-key").status == 404
    with running(ServerSettings(port=0, debug=True)) as debugged:
        assert admin_call(debugged, "/models/load", None, "default").json["state"] == "ready"


@pytest.mark.parametrize(
    "line", ["secret weight=0", "secret weight=x", "secret other", "secret admin=1", "secret name"]
)
def test_wrong_lines_of_keys_show_no_key(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(f"good\n{line}\n", encoding="utf-8")
    with pytest.raises(InvalidField, match="line 2") as refused:
        read_keys([], file)
    assert "secret" not in str(refused.value)


def test_no_key_is_shown_by_what_holds_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("from-file name=bob\n", encoding="utf-8")
    settings = ServerSettings(keys=read_keys(["from-flag"], file))
    tenant = settings.keys.find(b"from-file")
    shown = f"{settings!r} {settings.keys!r} {tenant!r} {vars(settings)} {vars(settings.keys)}"
    assert "from-file" not in shown and "from-flag" not in shown and "bob" in shown
