"""`--url`: `generate` and `chat` with a server, ours and others."""

from __future__ import annotations

import io
import json
import socket
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from server_harness import Running, running
from threaded_harness import slow_steps, watched

from mlc_llm.cli.__main__ import main
from mlc_llm.cli.interrupt import Interrupt
from mlc_llm.cli.remote_http import Address
from mlc_llm.errors import InvalidField
from mlc_llm.serve.server.limits.settings import ServerSettings
from mlc_llm.serve.server.limits.tenants import read_keys


@pytest.fixture(autouse=True)
def watch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("MLC_LLM_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    with watched(request.config, 60.0):
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as made:
        yield made


def url(server: Running) -> str:
    return f"http://127.0.0.1:{server.port}"


def generate(*words: str) -> int:
    return main(["generate", *words])


def typed(monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """What a pipe gives the chat."""
    data = "".join(f"{line}\n" for line in lines).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_generate_streams_an_answer(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("hello", "--url", url(server), "--stats") == 0
    out, err = capsys.readouterr()
    assert out == "hello\n"
    assert err.startswith("[5 prompt tokens, 5 answer tokens, first token after ")
    assert "opened" not in err
    server.wait_idle()


def test_generate_as_json_and_raw(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("ab", "--url", f"{url(server)}/v1/", "--raw", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["text"], found["finish_reason"], found["model"]) == ("ab", "stop", "mock://echo")
    assert found["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert found["timings"]["load_s"] is None and found["timings"]["ttft_s"] > 0


@pytest.mark.parametrize("name", ["<|im_end|>", "<｜User｜>", "</s>", "<end_of_turn>", "[INST]"])
def test_raw_says_that_names_of_control_tokens_are_text(
    name: str, server: Running, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"a {name} b", "--url", url(server)]
    assert generate(*words, "--raw") == 0
    out, err = capsys.readouterr()
    assert out == f"a {name} b\n"
    assert err.startswith(f"[{name} in the prompt: the server decides") and err.count("\n") == 1
    for more in (["--raw", "--quiet"], []):
        assert generate(*words, *more) == 0
        assert capsys.readouterr() == (out, "")
    assert generate("a <b> [1] <|", "--url", url(server), "--raw") == 0
    assert capsys.readouterr().err == ""


def test_a_cut_answer_names_the_flag(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("hello", "--url", url(server), "--max-tokens", "2") == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("he\n", "[stopped at 2 tokens; --max-tokens sets this limit]\n")


def test_the_fields_that_are_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "integer"}')
    flags = [
        "--temperature",
        "0",
        "--top-k",
        "3",
        "--stop",
        "x",
        "--seed",
        "4",
        "--max-tokens",
        "-1",
    ]
    with scripted(event(content="42"), DONE, headers="X-Ignored-Params: top_k\r\n") as fake:
        words = ["q", "--url", fake.url, "--schema", str(schema), "--system", "S", *flags]
        assert generate(*words) == 0
    assert capsys.readouterr() == ("42\n", "[the server ignores: top_k]\n")
    assert fake.bodies[0] == {
        "model": "first",
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "q"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.0,
        "top_k": 3,
        "seed": 4,
        "stop": ["x"],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "integer"}},
        },
    }


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--device", "cpu"], "--device"),
        (["--context", "9"], "--context"),
        (["--draft-model", "m"], "--draft-model"),
        (["--mode", "server"], "--mode"),
        (["--regex", "a"], "--regex"),
    ],
)
def test_what_a_server_cannot_do_is_refused_by_name(
    words: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert generate("q", "--url", "http://127.0.0.1:9", *words) == 2
    assert f"{named} cannot be used with --url" in capsys.readouterr().err


@pytest.mark.parametrize(
    "wrong",
    ["127.0.0.1", "ftp://a", "http://", "http://u:p@h", "http://h:99999", "http://h?a", "x y"],
)
def test_wrong_addresses(wrong: str) -> None:
    with pytest.raises(InvalidField, match="--url"):
        Address(wrong)


def test_paths_of_addresses() -> None:
    shown = {
        "http://h": "/v1",
        "http://h:8/": "/v1",
        "https://h/v1": "/v1",
        "http://h/a/b/": "/a/b",
    }
    assert {one: Address(one).path for one in shown} == shown


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert generate("q", "--url", f"http://127.0.0.1:{port}") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "cannot connect: Connection refused" in err


def test_a_certificate_that_nobody_trusts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate(tmp_path, "own"))

    def shake_hands(listening: socket.socket) -> None:
        with listening.accept()[0] as client, suppress(OSError):
            context.wrap_socket(client, server_side=True)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=shake_hands, args=(listening,))
        thread.start()
        assert generate("x", "--url", f"https://127.0.0.1:{listening.getsockname()[1]}") == 1
        thread.join()
    said = "cannot connect: self-signed certificate; SSL_CERT_FILE names a file of certificates\n"
    assert capsys.readouterr().err.endswith(said)


def test_keys(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert generate("q", "--api-key", "k") == 2
    assert "give --url too" in capsys.readouterr().err
    with running(ServerSettings(port=0, keys=read_keys(["right"], None))) as server:
        assert generate("q", "--url", url(server)) == 2
        assert "--api-key gives one" in capsys.readouterr().err
        assert generate("q", "--url", url(server), "--api-key", "right") == 0
        monkeypatch.setenv("OPENAI_API_KEY", "right")
        assert generate("q", "--url", url(server)) == 0
        monkeypatch.setenv("MLC_LLM_API_KEY", "wrong")  # it comes first
        assert generate("q", "--url", url(server)) == 2
        assert "wrong" not in capsys.readouterr().err


def test_errors_are_one_line(server: Running, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("q", "--url", url(server), "--model", "gpt-5") == 2
    err = capsys.readouterr().err
    assert "the model 'gpt-5' does not exist" in err and err.count("\n") == 1
    assert generate("x" * 5000, "--url", url(server)) == 2
    assert "maximum context length is 4096" in capsys.readouterr().err


BROKEN = {
    "the answer ended before it was complete": (["data: {}\n\n"], 1),
    "the engine died": (['data: {"error": {"message": "the engine died"}}\n\n'], 1),
    "an event of the server": (["data: {\n\n"], 1),
    "is no JSON object": (["data: [1]\n\n"], 1),
    "longer than 16 MB": (["data: " + "x" * (17 << 20)], 1),
}


@pytest.mark.parametrize("words", BROKEN)
def test_broken_streams(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    parts, code = BROKEN[words]
    with scripted(*parts) as fake:
        assert generate("q", "--url", fake.url) == code
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


def test_ctrl_c_ends_the_request(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flag is set as the handler of the signal sets it, when the first text has come."""
    pressed = Interrupt()

    @contextmanager
    def catch() -> Iterator[Interrupt]:
        yield pressed

    real = sys.stdout.write

    def write(text: str) -> int:
        pressed.pressed = True
        return real(text)

    monkeypatch.setattr("mlc_llm.cli.remote_session.catch_interrupt", catch)
    monkeypatch.setattr(sys.stdout, "write", write)
    with slow_steps():
        assert generate("long " * 500, "--url", url(server)) == 130
    assert 0 < len(capsys.readouterr().out) < 2000
    server.wait_idle()


def test_a_chat(
    server: Running,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    file = tmp_path / "talk.json"
    typed(monkeypatch, "hello", f"/save {file}", "/stats", "/reset", "again", "/exit", "never")
    assert main(["chat", "--url", url(server)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("hello\nsaved: ") and out.endswith(
        "the conversation is forgotten\nagain\n"
    )
    assert "context 10 of 4096 tokens, 1 turns" in out
    talk = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello"}]
    assert json.loads(file.read_text()) == talk


def test_settings_of_a_chat_are_the_servers_until_they_are_set(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "/set", "/set max_tokens 2", "hello", "/set max_tokens default", "hello")
    assert main(["chat", "--url", url(server), "--seed", "1"]) == 0
    out = capsys.readouterr().out
    assert "temperature         the server's own\n" in out and "seed                1\n" in out
    assert "max_tokens is now 2\nhe\nmax_tokens is now the server's own\n" in out


def test_a_chat_that_grows_too_long_drops_its_oldest_turns(
    server: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed(monkeypatch, "a" * 1200, "b" * 1200, "c" * 50)
    assert main(["chat", "--url", url(server)]) == 0
    err = capsys.readouterr().err
    assert "the context of 4096 tokens is full: dropped the oldest turn, from 'aaa" in err


def test_thoughts_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    parts = [event(reasoning_content="Hm, let me see"), event(content="4"), DONE]
    with scripted(*parts) as fake:
        assert generate("q", "--url", fake.url) == 0
    out, err = capsys.readouterr()
    assert (out, err) == ("4\n", "[the model thought first; 14 characters are not shown]\n")


DONE = "data: [DONE]\n\n"


def event(**delta: str) -> str:
    return f"data: {json.dumps({'choices': [{'delta': delta}]})}\r\n\r\n"


class Scripted:
    """A server with one model, whose answers are given. It closes each connection."""

    def __init__(self, stream: str, headers: str) -> None:
        self.bodies: list[Any] = []
        self._stream, self._headers = stream, headers
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection, connection.makefile("rwb") as file:
                self._answer(file)

    def _answer(self, file: Any) -> None:
        first = file.readline()
        size = 0
        while (line := file.readline()).strip():
            name, _, value = line.partition(b":")
            size = int(value) if name.lower() == b"content-length" else size
        text = json.dumps({"data": [{"id": "first"}]})
        if first.startswith(b"POST"):
            self.bodies.append(json.loads(file.read(size)))
            text = self._stream
        head = f"HTTP/1.1 200 OK\r\nConnection: close\r\n{self._headers}\r\n"
        try:
            file.write((head + text).encode())
            file.flush()
        except OSError:
            pass  # the client has seen enough


@contextmanager
def scripted(*parts: str, headers: str = "") -> Iterator[Scripted]:
    made = Scripted("".join(parts), headers)
    try:
        yield made
    finally:
        made.close()
