"""The server opens no address and no file that a request names, and images cost it nothing."""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator

import pytest
from fetching_tools import bodies, listening, png, urls
from server_harness import Running
from threaded_harness import eventually

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
    with listening() as made:
        yield made


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
