"""Where a server listens, and servers that cannot start: one line, and a code that is not 0."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate
from server_process import serving, until

from mlc_llm.cli.__main__ import main
from mlc_llm.cli.guard import INTERNAL_ERROR, USER_ERROR
from mlc_llm.errors import UserError
from mlc_llm.serve.server.pool import openers

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals and unix sockets")


def status(port: int, trusted: Path, key: str | None = None) -> int:
    """Of `/health`, or of a route that needs a key, over TLS. Raises SSLError for another
    certificate."""
    context = ssl.create_default_context(cafile=str(trusted))
    connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=30, context=context)
    try:
        if key is None:
            connection.request("GET", "/health")
        else:
            connection.request("GET", "/v1/models", headers={"x-api-key": key})
        return connection.getresponse().status
    finally:
        connection.close()


def test_tls_and_a_certificate_that_is_renewed(tmp_path: Path) -> None:
    first, first_key = certificate(tmp_path, "first")
    second, second_key = certificate(tmp_path, "second")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    shutil.copy(first, cert)
    shutil.copy(first_key, key)
    with serving("--tls-cert", str(cert), "--tls-key", str(key)) as server:
        assert any("https://127.0.0.1" in line for line in server.said)
        assert status(server.port, first) == 200
        with pytest.raises(ssl.SSLError):
            status(server.port, second)
        connection = server.connect()  # without TLS
        with pytest.raises((OSError, http.client.HTTPException)):
            connection.request("GET", "/health")
            connection.getresponse()
        connection.close()
        shutil.copy(second, cert)
        shutil.copy(second_key, key)
        server.process.send_signal(signal.SIGHUP)

        def is_renewed() -> bool:
            try:
                return status(server.port, second) == 200
            except ssl.SSLError:
                return False

        until(is_renewed, "the certificate is the old one")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_connections_whose_handshake_has_not_ended_count(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--max-connections", "3")
    with serving(*flags) as server:
        address = ("127.0.0.1", server.port)
        held = [socket.create_connection(address, timeout=30) for _ in range(3)]
        with socket.create_connection(address, timeout=30) as extra:
            assert extra.recv(1) == b""
        for one in held:
            one.close()
        until(lambda: is_served(server.port, cert), "connections that have gone count")


def is_served(port: int, trusted: Path) -> bool:
    try:
        return status(port, trusted) == 200
    except OSError:
        return False


def test_a_certificate_that_is_broken_changes_no_keys(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "first")
    keys = tmp_path / "keys"
    keys.write_text("old")
    flags = ("--tls-cert", str(cert), "--tls-key", str(key), "--api-key-file", str(keys))
    with serving(*flags) as server:
        trusted = tmp_path / "trusted.pem"
        shutil.copy(cert, trusted)
        cert.write_text("broken")
        keys.write_text("new")
        server.process.send_signal(signal.SIGHUP)
        named = f"tls_cert = '{str(cert)[:40]}"  # an error shortens a long value
        until(lambda: any(named in line for line in server.said), "it names no file")
        assert [status(server.port, trusted, one) for one in ("old", "new")] == [200, 401]
        shutil.copy(trusted, cert)
        server.process.send_signal(signal.SIGHUP)
        until(lambda: status(server.port, trusted, "new") == 200, "the key is not known")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0


def test_a_unix_socket(tmp_path: Path) -> None:
    path = tmp_path / "mlc.sock"
    with serving("--unix-socket", str(path)) as server:
        for _ in range(2):
            with socket.socket(socket.AF_UNIX) as made:
                made.settimeout(30)
                made.connect(str(path))
                made.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                found = b""
                while piece := made.recv(1000):
                    found += piece
            assert found.endswith(b'{"status":"ok"}')
        assert path.stat().st_mode & 0o777 == 0o660
        is_one_line(run("serve", "mock://echo", "--unix-socket", str(path)), "listens there")
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
    assert not path.exists()
    with serving("--unix-socket", str(path)) as server:
        server.process.kill()  # it leaves its file behind
    assert path.exists()
    with serving("--unix-socket", str(path)):
        pass
    path.unlink()
    path.write_text("mine")
    is_one_line(run("serve", "mock://echo", "--unix-socket", str(path)), "another kind")
    assert path.read_text() == "mine"


def run(*arguments: str, code: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """`mlc_llm serve`, which must end by itself. code: runs before it."""
    command = f"{code}\nfrom mlc_llm.cli.__main__ import main\nraise SystemExit(main())"
    return subprocess.run(
        [sys.executable, "-c", command, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.fixture
def refused(
    capsys: pytest.CaptureFixture[str],
) -> Callable[..., subprocess.CompletedProcess[str]]:
    """The same in this process, which takes less time."""

    def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
        try:
            code = main(arguments)
        except SystemExit as end:  # wrong usage
            code = int(end.code or 0)
        return subprocess.CompletedProcess(arguments, code, *capsys.readouterr())

    return run_here


def is_one_line(done: subprocess.CompletedProcess[str], words: str) -> None:
    assert done.returncode in (INTERNAL_ERROR, USER_ERROR), done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("WARNING")]
    assert len(lines) == 1 and lines[0].startswith("mlc_llm: error: "), done.stderr
    assert words in lines[0]


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        is_one_line(run("serve", "mock://echo", "--port", port), f"127.0.0.1:{port}")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "99999"], "99999"),
        (["--host", "0.0.0.0"], "--no-auth"),
        (["--host", "no.such.host.invalid", "--no-auth"], "no.such.host"),
        (["--api-key-file", "/no/such/file"], "/no/such/file"),
        (["--tls-cert", "a.pem"], "--tls-key"),
        (["--tls-cert", "/no/a.pem", "--tls-key", "/no/b.pem"], "/no/a.pem"),
        (["--unix-socket", "/no/such/folder/s"], "/no/such/folder/s"),
        (["--memory", "-1"], "--memory"),
        (["--max-queue", "-1"], "--max-queue"),
        (["--drain-seconds", "nan"], "--drain-seconds"),
        (["--max-open-models", "2"], "--max-open-models"),
        (["--cors-origin", "example.org"], "--cors-origin = 'example.org' is not allowed"),
        (["--allow-host", "box:80"], "--allow-host = 'box:80' is not allowed"),
        (["--model", "mock://echo"], "--model"),
        (["mock://echo"], "NAME=MODEL"),
        (["/no/such/model.gguf"], "/no/such/model.gguf"),
    ],
)
def test_flags_that_cannot_be(flags: list[str], words: str, refused: Any) -> None:
    is_one_line(refused("serve", "mock://echo", *flags), words)


def test_half_a_model(tmp_path: Path, refused: Any) -> None:
    half = tmp_path / "half.gguf"
    half.write_bytes(b"GGUF\3\0\0\0" + b"\1" * 100)
    is_one_line(refused("serve", str(half)), "half.gguf")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{")
    is_one_line(refused("serve", str(folder)), "config.json")


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a file is no folder")
    done = run("serve", code="", MLC_LLM_HOME=str(file / "cache"))
    is_one_line(done, str(file))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(28, "No space left on device", "/cache/x"), "No space left on device"),
        (MemoryError(), "out of memory"),
        (UserError("Insufficient memory: x"), "Insufficient"),
        (RuntimeError("can't start new thread"), "ulimit -u"),
    ],
)
def test_a_model_that_cannot_be_opened(
    error: Exception, words: str, refused: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(openers.EngineOpener, "open", fail)
    is_one_line(refused("serve", "mock://echo", "--port", "0"), words)


def test_debug_shows_where(tmp_path: Path) -> None:
    done = run("serve", "--debug", str(tmp_path / "none.gguf"))
    assert done.returncode == USER_ERROR and "Traceback" in done.stderr


def test_a_forked_child_cannot_use_the_engine() -> None:
    """A fork copies the engine without its threads: whatever asks it gets an error, and ends."""
    code = """
import os, sys, threading
from mlc_llm.serve.server.run import Server
usual = Server.on_tick
def on_tick(self, counter):
    if counter == 1:
        client = self._context.models.default.client
        child = os.fork()
        if child == 0:
            words = ""
            try:
                client.metrics_part("x").make()
            except Exception as error:
                words = str(error)
            os.write(2, f"child: {words}\\n".encode())
            os._exit(7)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(2, f"child ended: {code}\\n".encode())
        self.end()
    return usual(self, counter)
Server.on_tick = on_tick
"""
    done = run("serve", "mock://echo", "--port", "0", code=code)
    assert done.returncode == 0, done.stderr
    assert "cannot be used in a forked one" in done.stderr and "child ended: 7" in done.stderr


def test_nothing_runs_after_an_import() -> None:
    """NumPy's own library makes threads; ours and TVM's are made for the first engine."""
    code = (
        "import os, sys, threading, numpy\nfolder = '/proc/self/task'\n"
        "def tasks(): return len(os.listdir(folder)) if os.path.exists(folder) else 0\n"
        "before = tasks()\nimport mlc_llm.serve.server.run, mlc_llm.serve.server.pool.openers\n"
        "sys.exit(0 if threading.active_count() == 1 and tasks() == before else 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=100, check=False)
    assert done.returncode == 0


def test_deadlines_do_not_read_the_clock_on_the_wall() -> None:
    """Neither the server nor the engine may wait by a clock that somebody sets."""
    found = []
    for path in Path(openers.__file__).parents[1].glob("**/*.py"):
        text = path.read_text(encoding="utf-8")
        for line in text.splitlines():
            is_read = "time.time()" in line or "datetime.now(" in line
            if is_read and not any(word in line for word in ("created", "isoformat")):
                found.append(f"{path.name}: {line.strip()}")
    assert found == []


def test_a_clock_that_jumps_changes_nothing() -> None:
    code = """
import time
import itertools
jumps = itertools.count(0, 1_000_000)
time.time = lambda: float(next(jumps))
"""
    with serving(more=code) as server:
        assert json.loads(server.ask("hello", timeout=30).read())["choices"]
        assert server.get("/ready")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        assert server.end() == 0
