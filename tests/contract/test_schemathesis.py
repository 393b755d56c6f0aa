"""Schemathesis makes requests of the server's own OpenAPI file: none costs a 5xx or a hang."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

schemathesis = pytest.importorskip(
    "schemathesis", reason="the contract tests need `pip install schemathesis`"
)
hypothesis = pytest.importorskip("hypothesis")

pytestmark = pytest.mark.slow
HOOKS = Path(__file__).with_name("cheap_requests.py")
CHECKS = "not_a_server_error,content_type_conformance,status_code_conformance"


def serve(model: list[str]) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlc_llm", "serve", "--port", str(port), "--enable-debug"]
    command += ["--log-format", "off", *model]
    environment = {name: value for name, value in os.environ.items() if name != "MLC_LLM_API_KEY"}
    with subprocess.Popen(command, env=environment) as process:
        try:
            wait_for(f"http://127.0.0.1:{port}/ready")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0


def wait_for(url: str) -> None:
    end = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except (urllib.error.URLError, OSError):
            assert time.monotonic() < end, "the server did not start"
            time.sleep(0.1)


def try_all(url: str, examples: int, folder: Path, *more: str) -> None:
    """Run schemathesis; it fails for any answer that breaks a check. folder: for what it keeps."""
    command = [
        sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json",
        "--checks", CHECKS, "--max-examples", str(examples), "--request-timeout", "120",
        "--phases", "fuzzing,coverage", "--seed", "1", "--no-color", *more,
    ]  # fmt: skip
    environment = {**os.environ, "SCHEMATHESIS_HOOKS": str(HOOKS)}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=3000, check=False, cwd=folder,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    with urllib.request.urlopen(f"{url}/ready", timeout=10) as answer:
        assert answer.status == 200


def test_requests_of_every_shape_to_the_echo_engine(tmp_path: Path) -> None:
    for url in serve(["--model", "mock://echo"]):
        try_all(url, 100, tmp_path)


@pytest.mark.model
def test_requests_of_every_shape_to_the_default_model(
    default_model: object, tmp_path: Path
) -> None:
    """Answers take time there: fewer requests, and no debug routes (a reset ends all others)."""
    for url in serve([]):
        try_all(url, 15, tmp_path, "--exclude-path-regex", "^/debug")
