"""`mlc_llm serve --ray` in a process of its own, and OpenAI's client before it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LONGEST_S = 240
STOP_S = 90


@dataclass
class Application:
    port: int
    process: subprocess.Popen[bytes]
    client: Any
    model: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as found:
            return found.read()

    def stream(self, text: str, **more: Any) -> Any:
        return self.client.chat.completions.create(
            model=self.model,
            messages=[{"role": "user", "content": text}],
            stream=True,
            stream_options={"include_usage": True},
            **more,
        )

    def replicas(self) -> list[int]:
        """The processes of the replicas."""
        found = []
        name = f"ray::ServeReplica:llm:{self.model}".encode()
        for place in Path("/proc").glob("[0-9]*"):
            try:
                words = (place / "cmdline").read_bytes().replace(b"\0", b" ")
                parents = (place / "environ").read_bytes()
            except OSError:
                continue
            if words.startswith(name) and b"-prefill" not in words and self._mark in parents:
                found.append(int(place.name))
        return found

    @property
    def _mark(self) -> bytes:
        return f"MLC_LLM_TEST_MARK={self.port}".encode()


@contextmanager
def application(
    make_client: Any, folder: Path, model: Mapping[str, Any], environment: Mapping[str, str]
) -> Iterator[Application]:
    """One model. make_client: `openai.OpenAI`. folder: for its file. environment: what is added."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    file = folder / "app.yaml"
    app = {"name": "llm", "import_path": "mlc_llm.ray:build_app", "args": {"models": [model]}}
    http = {"host": "127.0.0.1", "port": port}
    file.write_text(json.dumps({"http_options": http, "applications": [app]}))  # JSON is YAML
    own = {"MLC_LLM_TEST_MARK": str(port), "RAY_AUTH_MODE": "disabled"}
    seen = {**os.environ, **own, **environment}
    seen.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-m", "mlc_llm", "serve", "--ray", str(file)]
    with subprocess.Popen(command, env=seen) as process:
        client = make_client(base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0)
        found = Application(port, process, client, model["name"])
        try:
            _wait_for(found)
            yield found
        finally:
            client.close()
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            assert process.wait(STOP_S) == 0


def _wait_for(app: Application) -> None:
    end = time.monotonic() + LONGEST_S
    while True:
        try:
            app.get("/ready")
            return
        except OSError:
            assert app.process.poll() is None, "it has ended"
            assert time.monotonic() < end, "it did not start"
            time.sleep(0.2)
