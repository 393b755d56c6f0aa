"""A server whose model reads images: every API's shape of them, and what it refuses.

Its model is tiny and random. `test_no_fetching.py` has what a model refuses that reads none.
"""

from __future__ import annotations

import base64
import io
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fetching_tools import NAMES, bodies, listening, png, urls
from server_harness import Reply, Running, running

Image = pytest.importorskip("PIL.Image", reason="the extra `images` is not installed")

from mlc_llm.images import fetch  # noqa: E402
from mlc_llm.serve.config import EngineConfig  # noqa: E402
from mlc_llm.serve.server.limits.settings import ServerSettings  # noqa: E402
from mlc_llm.serve.server.pool.openers import EngineOpener  # noqa: E402
from mlc_llm.testing.tiny_eyes import IMAGE_TOKENS, TinyEyes, write_tiny_eyes  # noqa: E402

FIELD = "messages[0].content[0].image_url.url"
QUESTION = "What is it?"
TRIES = 3
"""A machine with neighbours is slow at times; the fastest try counts."""
NEED_A_LOOKUP = ("127.0.0.1.nip.io", "127.0.0.1%2f.example.org")
INSIDE = (
    "169.254.169.254", "10.0.0.1", "192.168.0.1", "172.16.0.1", "100.64.0.1", "127.0.0.1",
    "localhost",
)  # fmt: skip
ALLOWED = "no host is allowed", "hosts are allowed"


def noise(seed: int, form: str = "PNG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form)
    return out.getvalue()


BAD = {
    "says that it is huge": png(2**31 - 1, 2**31 - 1, b""),
    "64 million pixels in a few bytes": png(8000, 8000),
    "a GIF that says 4 billion pixels": b"GIF89a" + b"\xff" * 4 + bytes(3) + b";",
    "no row": png(8, 0),
    "no column": png(0, 8),
    "fewer rows than it says": png(64, 64, zlib.compress(bytes(65))),
    "a PNG cut off": noise(1)[:2000],
    "a JPEG cut off": noise(1, "JPEG")[:400],
    "a WebP cut off": noise(1, "WEBP")[:400],
    "a GIF cut off": noise(1, "GIF")[:400],
    "a head alone": b"GIF89a",
    "svg with a script": b"<svg xmlns='http://www.w3.org/2000/svg'><script>1</script></svg>",
    "a text": b"no picture at all",
    "nothing": b"",
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinyEyes]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        yield write_tiny_eyes(tmp_path_factory.mktemp("eyes"))


@contextmanager
def seeing(model: Path, hosts: Sequence[str] = ()) -> Iterator[Running]:
    config = EngineConfig(
        verbose=False, kernels="reference", max_num_sequence=2, allow_image_hosts=list(hosts)
    )
    with running(ServerSettings(port=0), [str(model)], EngineOpener("cpu", config)) as made:
        assert made.chat("a", max_tokens=1).status == 200  # its template's process has started
        yield made


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[int, list[str]]]:
    with listening() as made:
        yield made


@pytest.fixture(scope="module")
def plain(files: TinyEyes) -> Iterator[Running]:
    with seeing(files.model) as made:
        yield made


@pytest.fixture(scope="module")
def open_to_hosts(files: TinyEyes, listener: tuple[int, list[str]]) -> Iterator[Running]:
    """It may ask hosts, and somebody has allowed such ones as are inside."""
    port, _ = listener
    named = [one.rpartition("@")[2].rstrip(".") for one in NAMES if one not in NEED_A_LOOKUP]
    hosts = [f"{one}:{port}" for one in named if one.isascii() and "[" not in one]
    with seeing(files.model, ["example.org", *INSIDE, *hosts]) as made:
        yield made


@pytest.fixture(scope="module", params=ALLOWED)
def server(request: pytest.FixtureRequest) -> Running:
    name = "plain" if request.param == ALLOWED[0] else "open_to_hosts"
    found: Running = request.getfixturevalue(name)
    return found


def data_url(data: bytes, kind: str = "") -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def with_image(url: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The bodies whose image is at this address."""
    for path, body in bodies(url):
        if "response_format" not in body and "model" not in body:
            yield path, body


def refused(server: Running, path: str, body: dict[str, Any]) -> Reply:
    """The reply, which must come within a second and name the image's field."""
    for _ in range(TRIES):
        before = time.monotonic()
        reply = server.call("POST", path, body)
        if (seconds := time.monotonic() - before) < 1:
            break
    assert seconds < 1, (path, body)
    assert reply.status == 400, (path, body, reply.data)
    assert b"image" in reply.data, (path, reply.data)
    if path == "/v1/chat/completions":
        assert reply.error["param"] == FIELD, reply.data
    return reply


@pytest.mark.timing
def test_no_address_is_called(server: Running, listener: tuple[int, list[str]]) -> None:
    port, calls = listener
    odd = [f"http://[::ffff:127.0.0.1]:{port}/", f"http://[::ffff:7f00:1]:{port}/"]
    for url in [*urls(port), *odd]:
        for path, body in with_image(url):
            refused(server, path, body)
    server.wait_idle()
    assert calls == []


def test_hosts_that_are_allowed_and_inside_are_refused_as_such(
    open_to_hosts: Running, listener: tuple[int, list[str]]
) -> None:
    """So it is not the list of hosts alone that keeps the server from them."""
    port, calls = listener

    def words(url: str) -> str:
        part = {"type": "image_url", "image_url": {"url": url}}
        body = {"messages": [{"role": "user", "content": [part]}]}
        return str(open_to_hosts.call("POST", "/v1/chat/completions", body).error["message"])

    inside = "public addresses only"
    for name in ("127.0.0.1", "127.1", "0x7f.1", "2130706433", "localhost.", "127.0.0.1.", "0"):
        assert inside in words(f"http://{name}:{port}/a.png"), name
    for url in (
        "http://169.254.169.254/latest/meta-data/",
        "https://10.0.0.1/",
        "http://LOCALHOST/",
    ):
        assert inside in words(url), url
    for url in (f"http://user@127.0.0.1:{port}/", f"http://127.0.0.1:{port}\\@example.org/"):
        assert "name and password" in words(url), url
    assert "hosts allowed here" in words(f"http://127.0.0.1:{port + 1}/")
    assert calls == []


def says(status: str, *lines: str, body: bytes = b"") -> bytes:
    head = "\r\n".join([f"HTTP/1.1 {status}", *lines, f"Content-Length: {len(body)}", "", ""])
    return head.encode() + body


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Same", "308 Same"])
def test_redirects_are_not_followed(
    status: str, files: TinyEyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that counts as public here, and sends the server to another one."""
    monkeypatch.setattr(fetch, "is_public", lambda address: True)
    with listening() as (inner, called):
        sends_on = says(status, f"Location: http://127.0.0.1:{inner}/a.png")
        with listening(sends_on) as (port, calls):
            hosts = [f"127.0.0.1:{port}", f"127.0.0.1:{inner}"]
            with seeing(files.model, hosts) as server:
                reply = server.call("POST", *next(with_image(f"http://{hosts[0]}/a.png")))
        assert "redirects are not followed" in reply.error["message"]
        assert reply.error["param"] == FIELD
        assert len(calls) == 1 and called == []


def test_a_host_that_is_allowed_and_public_is_asked(
    files: TinyEyes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the tests above would see a call."""
    monkeypatch.setattr(fetch, "is_public", lambda address: True)
    answer = says("200 OK", "Content-Type: image/png", body=noise(1))
    with listening(answer) as (port, calls), seeing(files.model, [f"127.0.0.1:{port}"]) as server:
        fetched = server.call("POST", *next(with_image(f"http://127.0.0.1:{port}/a.png")))
        given = server.call("POST", *next(with_image(data_url(noise(1), "image/png"))))
    assert len(calls) == 1 and fetched.status == given.status == 200
    assert fetched.json["usage"]["prompt_tokens"] == given.json["usage"]["prompt_tokens"]


@pytest.mark.timing
@pytest.mark.parametrize("name", BAD)
def test_bad_pictures_are_refused(plain: Running, name: str) -> None:
    encoded = base64.b64encode(BAD[name]).decode()
    for path, body in with_image(data_url(BAD[name])):
        if path == "/api/chat":  # it takes base64, and no addresses
            body["messages"][0]["images"] = [encoded]
        reply = refused(plain, path, body)
        assert b"0x" not in reply.data and b"Error" not in reply.data.replace(b"_error", b"")
    plain.wait_idle()


def test_a_picture_of_one_pixel_is_read(plain: Running) -> None:
    reply = plain.call("POST", *next(with_image(data_url(png(1, 1)))))
    assert reply.status == 200 and reply.json["usage"]["prompt_tokens"] > IMAGE_TOKENS


def asked(data: bytes) -> dict[str, dict[str, Any]]:
    """One question about an image in the shape of each API."""
    encoded, url = base64.b64encode(data).decode(), data_url(data, "image/png")
    part = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "base64", "media_type": "image/png", "data": encoded}
    block, item = {"type": "image", "source": source}, {"type": "input_image", "image_url": url}
    text, given = {"type": "text", "text": QUESTION}, {"type": "input_text", "text": QUESTION}

    def said(*parts: Any) -> list[dict[str, Any]]:
        return [{"role": "user", "content": list(parts)}]

    ollama = [{"role": "user", "content": QUESTION, "images": [encoded]}]
    options = {"temperature": 0, "num_predict": 8}
    some = {"max_tokens": 8, "temperature": 0}
    return {
        "/v1/chat/completions": {"messages": said(part, text), **some},
        "/v1/messages": {"messages": said(block, text), **some},
        "/v1/responses": {"input": said(item, given), "max_output_tokens": 16, "temperature": 0},
        "/api/chat": {"messages": ollama, "stream": False, "options": options},
        "/api/generate": {
            "prompt": QUESTION, "images": [encoded], "stream": False, "options": options,
        },
    }  # fmt: skip


def answered(server: Running, path: str, body: dict[str, Any]) -> tuple[int, str]:
    """Tokens of the prompt, and the first 8 characters of the answer."""
    reply = server.call("POST", path, body)
    assert reply.status == 200, (path, reply.data)
    found = reply.json
    if path.startswith("/api/"):
        text = found["message"]["content"] if path == "/api/chat" else found["response"]
        return found["prompt_eval_count"], text[:4]
    if path == "/v1/chat/completions":
        return found["usage"]["prompt_tokens"], found["choices"][0]["message"]["content"][:4]
    if path == "/v1/messages":
        return found["usage"]["input_tokens"], found["content"][0]["text"][:4]
    return found["usage"]["input_tokens"], found["output"][0]["content"][0]["text"][:4]


def test_every_api_has_a_shape_for_images(plain: Running) -> None:
    first, second = asked(noise(1)), asked(noise(2))
    found = {path: answered(plain, path, body) for path, body in first.items()}
    assert len(found) == 5 and len(set(found.values())) == 1, found
    tokens, text = found["/v1/messages"]
    without = plain.chat(QUESTION, max_tokens=1).json["usage"]["prompt_tokens"]
    assert tokens > without + IMAGE_TOKENS
    others = {answered(plain, path, body) for path, body in second.items()}
    assert len(others) == 1 and others != {(tokens, text)}, "the image changes nothing"
