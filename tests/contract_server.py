"""A server of its own process with the default model, for clients that others have written."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

KEY = "contract-key"


@contextmanager
def contract_server() -> Iterator[str]:
    """Its address, without a path."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlc_llm", "serve", "--port", str(port)]
    command += ["--pooling", "last_token"]  # it is a model for chats
    environment = {**os.environ, "MLC_LLM_API_KEY": KEY}
    environment.pop("PYTHONPATH", None)  # what only the clients have is out of its sight
    with subprocess.Popen(command, env=environment) as process:
        try:
            _wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(40) == 0


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 300
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request("GET", "/ready")
            assert connection.getresponse().status == 200
            return
        except OSError:
            assert process.poll() is None, "the server has ended"
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.1)
        finally:
            connection.close()
