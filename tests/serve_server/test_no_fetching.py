"""The server opens no address and no file that a request names, and images cost it nothing."""

from __future__ import annotations

import base64
import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from server_harness import Running
from threaded_harness import eventually

NAMES = (
    "127.0.0.1", "localhost", "127.1", "0.0.0.0", "0", "0x7f.1", "0x7f000001", "2130706433",
    "017700000001", "[::1]", "[::ffff:127.0.0.1]", "[::]", "127.0.0.1.nip.io", "localhost.",
    "user@127.0.0.1", "example.org@127.0.0.1", "127.0.0.1%2f.example.org", "①②⑦.⓪.⓪.①",
)  # fmt: skip
OTHERS = (
    "http://169.254.169.254/latest/meta-data/",
    "http://[::ffff:169.254.169.254]/",
    "http://[fd00:ec2::254]/",
    "http://metadata.google.internal/",
    "http://10.0.0.1/", "http://192.168.0.1/", "http://172.16.0.1/", "http://100.64.0.1/",
    "file:///etc/passwd", "file://localhost/etc/passwd", "FILE:///etc/passwd", "/etc/passwd",
    "../../etc/passwd", "\\\\server\\share", "ftp://127.0.0.1/", "gopher://127.0.0.1/",
    "dict://127.0.0.1/", "ldap://127.0.0.1/", "jar:http://127.0.0.1!/", "javascript:alert(1)",
    "http:127.0.0.1", "http:///127.0.0.1", "http:\\\\127.0.0.1", "http://127.0.0.1\\@example.org",
    "http://example.org\\@127.0.0.1", " http://127.0.0.1", "http://\t127.0.0.1", "//127.0.0.1/",
    "http://127.0.0.1\r\nHost: a", "blob:http://127.0.0.1/a", "s3://bucket/key", "data:,",
)  # fmt: skip


def png(width: int, height: int, data: bytes | None = None) -> bytes:
    """A picture in grey; without data, as many zeros as it says it has."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    rows = zlib.compress(b"\0" * ((width + 1) * height) if data is None else data, 9)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


PICTURES = {
    "one pixel": png(1, 1),
    "says that it is huge": png(2**31 - 1, 2**31 - 1, b""),
    "4 MB that become 4 GB": png(2**16, 2**6),
    "cut off": png(8, 8)[:40],
    "no picture": b"GIF89a",
    "svg with a script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
}


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[int, list[str]]]:
    """A port of this machine, and who has called there."""
    calls: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as own:
        own.settimeout(0.05)
        stop = threading.Event()

        def listen() -> None:
            while not stop.is_set():
                try:
                    made, address = own.accept()
                except TimeoutError:
                    continue
                calls.append(str(address))
                made.close()

        thread = threading.Thread(target=listen)
        thread.start()
        yield own.getsockname()[1], calls
        stop.set()
        thread.join()


def bodies(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every place of a request that could name something to fetch."""
    part = {"type": "image_url", "image_url": {"url": url}}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}
    yield (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "a", "schema": {"$ref": url}},
            },
        },
    )
    block = {"type": "image", "source": {"type": "url", "url": url}}
    yield "/v1/messages", {"max_tokens": 1, "messages": [{"role": "user", "content": [block]}]}
    item = {"type": "input_image", "image_url": url}
    yield "/v1/responses", {"input": [{"role": "user", "content": [item]}]}
    yield "/api/chat", {"messages": [{"role": "user", "content": "a", "images": [url]}]}
    yield "/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "model": url}
    yield "/api/show", {"model": url}


def urls(port: int) -> list[str]:
    return [f"http://{name}:{port}/picture.png" for name in NAMES] + list(OTHERS)


def test_there_are_enough_of_them() -> None:
    assert len(urls(1)) >= 50


def test_no_address_is_called(server: Running, listener: tuple[int, list[str]]) -> None:
    port, calls = listener
    with socket.create_connection(("127.0.0.1", port)):
        pass
    eventually(lambda: calls, "nobody is heard")
    assert calls.pop()  # it would be seen
    for url in urls(port):
        for path, body in bodies(url):
            reply = server.call("POST", path, body)
            # The echo engine follows no schema, so that one may be answered.
            expected = (200, 400) if "response_format" in body else (400, 404)
            assert reply.status in expected, (path, url, reply.data)

    server.wait_idle()
    assert calls == []


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_refused_by_name_before_they_are_read(server: Running, name: str) -> None:
    data = "data:image/png;base64," + base64.b64encode(PICTURES[name]).decode()
    for path, body in bodies(data):
        if "response_format" not in body and "model" not in body:
            reply = server.call("POST", path, body)
            assert reply.status == 400 and b"image" in reply.data.lower(), (path, reply.data)
