"""Addresses of images: `data:` for everybody, other hosts only where they are allowed."""

from __future__ import annotations

import base64
import http.client
import logging
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.images import fetch, lookup
from mlc_llm.images.addresses import image_file
from mlc_llm.images.decoder import ImageLimits
from mlc_llm.images.fetch import is_public

Answer = Callable[[socket.socket], None]


def refusal(url: str, *hosts: str, limits: ImageLimits | None = None) -> str:
    with pytest.raises(InvalidField) as error:
        image_file(url, hosts, limits, "url")
    assert error.value.field == "url"
    return error.value.allowed


def test_bytes_come_out_of_data_addresses() -> None:
    body = base64.b64encode(b"\xff\x00abc").decode()
    assert body == "/wBhYmM="
    lines = ("/wBh\r\nYmM=\r\n", " /wBhYm\tM\n=", "/wBh%0AYmM")
    for text in (body, body.rstrip("="), body.replace("=", "%3D"), *lines):
        found = image_file(f"data:image/png;base64,{text}")
        assert (found.data, found.media_type) == (b"\xff\x00abc", "image/png")
    assert image_file("DATA:,a%20b").data == b"a b"
    assert image_file("data:;base64,").media_type is None


def test_bad_data_addresses_are_refused() -> None:
    for body in ("a!b", "abcde", "ab\ncde", "ab\vcd", "a-_b"):
        assert "not base64" in refusal(f"data:image/png;base64,{body}")
    assert "comma" in refusal("data:image/png;base64")
    assert "100 bytes at most" in refusal("data:," + "a" * 301, limits=ImageLimits(max_bytes=100))


@pytest.mark.parametrize(
    "url",
    [
        "http://a.example/x.png",
        "https://a.example/",
        "file:///etc/passwd",
        "x.png",
        "ftp://a/b",
        "",
    ],
)
def test_other_addresses_are_refused_by_default(url: str) -> None:
    assert "--allow-image-hosts" in refusal(url)


def test_only_hosts_that_are_allowed_are_asked() -> None:
    for url in (
        "http://b.example/", "http://a.example.b.example/", "http://a.example:8080/",
        "http://a.example@b.example/", "http://[::1]/", "https://a.example:80/",
    ):  # fmt: skip
        assert refusal(url, "a.example") == "hosts allowed here: a.example"
    assert "name and password" in refusal("http://u:p@a.example/", "a.example")
    assert "--allow-image-hosts" in refusal("file://a.example/x", "a.example")
    assert "an address of an image" in refusal("http://a.example:x/", "a.example")
    assert "%XX" in refusal("http://a.example/a\u00e9", "a.example")


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
        "0.0.0.0", "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1",
        "ff02::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::a00:1", "2002:7f00:1::",
        "2001:db8::1", "198.18.0.1", "240.0.0.1",
    ],
)  # fmt: skip
def test_addresses_inside_a_network_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_other_addresses_are_public() -> None:
    assert is_public("93.184.215.14") and is_public("2606:2800:21f:cb07::1")


def test_a_name_of_this_machine_is_refused() -> None:
    assert "public addresses only" in refusal("http://localhost/", "localhost")
    assert "public addresses only" in refusal("http://127.0.0.1:1/", "127.0.0.1:1")


def test_a_name_with_one_inner_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(0, 0, 0, "", (one, 80)) for one in ("93.184.215.14", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    assert "public addresses only" in refusal("http://a.example/", "a.example")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Answer], str]]:
    """Starts a host on this machine, which counts as public, with one answer; its name."""
    monkeypatch.setattr(fetch, "is_public", lambda address: True)
    sockets, threads = [], []

    def start(answer: Answer) -> str:
        listening = socket.create_server(("127.0.0.1", 0))
        sockets.append(listening)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(65536)
                answer(connection)

        threads.append(threading.Thread(target=serve, daemon=True))
        threads[-1].start()
        return f"127.0.0.1:{listening.getsockname()[1]}"

    yield start
    for thread in threads:
        thread.join(30)
    for listening in sockets:
        listening.close()


def says(text: str) -> Answer:
    return lambda connection: connection.sendall(text.encode())


def test_an_allowed_host_is_asked(host: Callable[[Answer], str]) -> None:
    name = host(says("HTTP/1.1 200 OK\r\nContent-Type: image/png; q=1\r\n\r\nabc"))
    found = image_file(f"http://{name}/a?b=c", [name])
    assert (found.data, found.media_type) == (b"abc", "image/png")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("HTTP/1.1 302 Found\r\nLocation: http://10.0.0.1/\r\n\r\n", "redirects are not followed"),
        ("HTTP/1.1 404 Not Found\r\n\r\n", "answered 404"),
        ("HTTP/1.1 200 OK\r\n\r\n" + "a" * 101, "100 bytes at most"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nabc", "did not send it"),
        ("SSH-2.0-OpenSSH\r\n", "did not send it"),
        ("", "did not send it"),
    ],
)
def test_bad_answers_are_refused(answer: str, words: str, host: Callable[[Answer], str]) -> None:
    name = host(says(answer))
    assert words in refusal(f"http://{name}/", name, limits=ImageLimits(max_bytes=100))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (socket.gaierror(-2, "Name or service not known"), "its name is not known"),
        (ConnectionRefusedError(111, "Connection refused"), "it cannot be reached, or broke off"),
        (OSError(24, "Too many open files"), "it cannot be reached, or broke off"),
        (ssl.SSLCertVerificationError(1, "self-signed"), "its certificate is not trusted here"),
        (ssl.SSLError(1, "wrong version"), "TLS with it failed"),
        (http.client.BadStatusLine("SSH"), "its answer is not HTTP"),
        (http.client.IncompleteRead(b"", 9), "its answer ended too early"),
        (ValueError("embedded null character"), "its answer is not HTTP"),
    ],
)
def test_words_of_the_system_stay_in_the_log(
    error: Exception,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    caplog.set_level(logging.DEBUG, "mlc_llm.images")
    monkeypatch.setattr(socket, "getaddrinfo", fails)
    assert refusal("http://a.example/", "a.example") == f"the host did not send it: {words}"
    assert f"url: {type(error).__name__}: " in caplog.text


def test_a_name_that_is_looked_up_for_too_long_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lookups that are given up go on, so there are never more than a few."""
    go_on, asked = threading.Event(), []

    def looks(*_: object, **__: object) -> list[object]:
        asked.append(threading.current_thread())
        go_on.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", looks)
    limits = ImageLimits(seconds=0.05)
    try:
        for _ in range(lookup.MOST + 2):
            before = time.monotonic()
            words = refusal("http://a.example/", "a.example", limits=limits)
            assert words == "the host did not send it: more than 0.05 seconds"
            assert time.monotonic() - before < 5
    finally:
        go_on.set()
        for thread in asked:
            thread.join(30)
    assert len(asked) == lookup.MOST
    monkeypatch.undo()
    assert "public addresses only" in refusal("http://127.0.0.1:1/", "127.0.0.1:1")


def test_a_host_that_sends_a_byte_now_and_then_is_cut_off(host: Callable[[Answer], str]) -> None:
    def drip(connection: socket.socket) -> None:
        try:
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while True:
                connection.sendall(b"a")
                time.sleep(0.01)
        except OSError:
            pass

    name = host(drip)
    words = refusal(f"http://{name}/", name, limits=ImageLimits(seconds=0.3))
    assert words == "the host did not send it: more than 0.3 seconds"
