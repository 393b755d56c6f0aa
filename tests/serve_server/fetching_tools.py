"""Addresses that a server must not open, and requests that name them."""

from __future__ import annotations

import socket
import struct
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

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


@contextmanager
def listening(answer: bytes = b"") -> Iterator[tuple[int, list[str]]]:
    """A port of this machine, and who has called there. answer: what they get."""
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
                with made:
                    if answer:
                        made.recv(2**16)
                        made.sendall(answer)

        thread = threading.Thread(target=listen)
        thread.start()
        try:
            yield own.getsockname()[1], calls
        finally:
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
