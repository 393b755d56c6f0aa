"""`mlc_llm serve --ray` in a process of its own, for the measurements of `scale.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 600.0
STOP_S = 120.0
MARK = "MLC_LLM_SCALE_MARK"
"""An environment variable by which the processes of one application are found."""


@dataclass(frozen=True)
class Served:
    """An application, or a server, that answers."""

    port: int
    model: str
    process: subprocess.Popen[bytes]

    def replicas(self) -> list[int]:
        """The processes of its replicas, also of those that do not answer yet."""
        found, mark = [], f"{MARK}={self.port}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                name = (place / "cmdline").read_bytes()
                is_own = mark in (place / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if is_own and name.startswith(f"ray::ServeReplica:llm:{self.model}".encode()):
                found.append(int(place.name))
        return found


@contextmanager
def application(model: str, log: Path | None = None, **more: object) -> Iterator[Served]:
    """One model on Ray Serve; `more` are fields of its entry in the config file. log: where its
    output goes; None: nowhere."""
    entry = {"name": "model", "model": model, "num_cpus": 0.1, **more}
    app = {"name": "llm", "import_path": "mlc_llm.ray:build_app", "args": {"models": [entry]}}
    with tempfile.TemporaryDirectory(prefix="scale-") as folder:
        file = Path(folder) / "app.yaml"
        port = _free_port()
        http = {"host": "127.0.0.1", "port": port}
        file.write_text(json.dumps({"http_options": http, "applications": [app]}))  # JSON is YAML
        with _running(["--ray", str(file)], port, log) as served:
            yield served


@contextmanager
def plain_server(model: str, config: Mapping[str, object]) -> Iterator[Served]:
    """`mlc_llm serve` of the same model. config: flags and their values."""
    port = _free_port()
    flags = [word for name, value in config.items() for word in (f"--{name}", str(value))]
    given = [model, "--served-model-name", "model", "--port", str(port), *flags]
    with _running(given, port, None) as served:
        yield served


@contextmanager
def _running(arguments: list[str], port: int, log: Path | None) -> Iterator[Served]:
    environment = {**os.environ, MARK: str(port), "RAY_AUTH_MODE": "disabled"}
    environment["RAY_DEDUP_LOGS"] = "0"  # lines of the log are counted
    environment.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "mlc_llm", "serve", *arguments]
    with open(log or os.devnull, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        try:
            served = Served(port, "model", process)
            _wait_for(served)
            yield served
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                code = process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if code:
            raise SystemExit(f"the application ended with exit code {code}")


def _wait_for(served: Served) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/ready", timeout=30):
                return
        except OSError:
            if served.process.poll() is not None:
                raise SystemExit("the application has ended") from None
            if time.monotonic() > end:
                raise SystemExit("the application does not answer") from None
            time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
