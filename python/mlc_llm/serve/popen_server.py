"""`PopenServer`: the HTTP server as a process of its own, for tests and notebooks."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import fields
from typing import IO

from mlc_llm.errors import InvalidField, MLCError
from mlc_llm.serve.config import EngineConfig, EngineMode

START_S = 900.0
"""A model may have to be downloaded, compiled and packed first."""
POLL_S = 0.05
END_S = 10.0
"""After SIGTERM, running answers have so long; then the process is killed."""


class PopenServer:
    """`mlc_llm serve` in the background. As a context manager it starts and ends with the block.

    The arguments are MLC LLM's. model: None is the default model. port: 0 takes a free one.
    enable_tracing: `POST /debug/dump_event_trace` gives what happened to each request. A server
    records that with `enable_debug`, so True is refused without it. The process also ends when this
    one does, however it ends. What the server writes goes to this program's standard error.
    """

    def __init__(
        self,
        model: str | None = None,
        device: str = "auto",
        *,
        model_lib: str | None = None,
        mode: EngineMode = "local",
        engine_config: EngineConfig | Mapping[str, object] | None = None,
        enable_debug: bool = True,
        enable_tracing: bool = False,
        host: str = "127.0.0.1",
        port: int = 8082,
    ) -> None:
        """Raises `InvalidField` for an argument that cannot be used."""
        if enable_tracing and not enable_debug:
            words = "a server records events with enable_debug=True"
            raise InvalidField("enable_tracing", enable_tracing, words)
        self.model, self.device, self.model_lib, self.mode = model, str(device), model_lib, mode
        self.engine_config = EngineConfig.of(engine_config)
        self._fields = _given(self.engine_config, model=model, model_lib=model_lib, mode=mode)
        self.enable_debug, self.enable_tracing = enable_debug, enable_tracing
        self.host, self.port = host, port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        """Such as http://127.0.0.1:8082."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def openai_v1_base_url(self) -> str:
        """`base_url` for clients of OpenAI's API."""
        return f"{self.base_url}/v1"

    def start(
        self, extra_env: Mapping[str, str] | None = None, *, timeout: float = START_S
    ) -> None:
        """Start the process and wait until it takes requests. extra_env: more variables of its
        environment. timeout: seconds.

        Raises `InvalidField` if something else listens on the port, and `MLCError` if the process
        ends or takes too long.
        """
        if self._process is not None:
            raise MLCError("the server has been started already")
        self.port = _free_port(self.host, self.port)
        environment = {**os.environ, **(extra_env or {})}
        self._process = subprocess.Popen(
            self._command(), env=environment, stdin=subprocess.PIPE, stdout=_stderr()
        )
        try:
            self._wait_until_ready(self._process, time.monotonic() + timeout)
        except BaseException:
            self.terminate()
            raise

    def terminate(self) -> None:
        """End the process, if it runs: soon with SIGTERM, at once after a while. It may be called
        more than once, and after the process has crashed."""
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            for _ in range(2):  # the second one ends running answers
                process.send_signal(signal.SIGTERM)
                time.sleep(POLL_S)
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        finally:
            process.stdin.close()

    def __enter__(self) -> PopenServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.terminate()

    def _command(self) -> list[str]:
        words = [sys.executable, "-m", "mlc_llm.cli.tied", "serve"]
        words += ["--device", self.device, "--mode", self.mode]
        words += ["--host", self.host, "--port", str(self.port)]
        words += [] if self.model is None else ["--model", self.model]
        words += [] if self.model_lib is None else ["--model-lib", self.model_lib]
        words += ["--enable-debug"] if self.enable_debug else []
        return [*words, "--overrides", json.dumps(self._fields)] if self._fields else words

    def _wait_until_ready(self, process: subprocess.Popen[bytes], end: float) -> None:
        while not _is_ready(self.host, self.port):
            code = process.poll()
            if code is not None:
                words = "its message is on standard error"
                raise MLCError(
                    f"the server ended with exit code {code} before it was ready; {words}"
                )
            if time.monotonic() > end:
                raise MLCError("the server was not ready in time; `timeout` sets the seconds")
            time.sleep(POLL_S)


def _given(config: EngineConfig, **arguments: str | None) -> dict[str, object]:
    """The fields that the server is told, because they are not the default. Raises `InvalidField`
    for one that contradicts an argument."""
    for name, argument in arguments.items():
        value = getattr(config, name)
        if value not in (None, argument):
            raise InvalidField(
                f"engine_config.{name}", value, f"the server's argument {name} is {argument!r}"
            )
    plain = EngineConfig()
    names = [one.name for one in fields(config) if one.name not in arguments]
    found = {name: getattr(config, name) for name in names}
    return {name: value for name, value in found.items() if value != getattr(plain, name)}


def _free_port(host: str, port: int) -> int:
    """The port, or a free one for 0. Else another server's answers would be taken for ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind((host, port))
        except (OSError, OverflowError) as error:
            raise InvalidField("port", port, f"cannot listen on {host}:{port}: {error}") from error
        return int(one.getsockname()[1])


def _is_ready(host: str, port: int) -> bool:
    name = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    connection = http.client.HTTPConnection(name, port, timeout=10)
    try:
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _stderr() -> int | IO[str]:
    """Where the server's standard output goes: answers of the program must not mix with it."""
    try:
        return sys.stderr.fileno()
    except (AttributeError, OSError, ValueError):  # a notebook's, or a test's
        return subprocess.DEVNULL
