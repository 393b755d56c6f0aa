"""The files for supervisors: what they call exists, and tools that know them find nothing."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from certificates import certificate

from mlc_llm.cli.parser import build_parser
from mlc_llm.serve.server.notify import READY, STOPPING, WATCHDOG, Supervisor

DEPLOY = Path(__file__).parent.parent / "deploy"
UNIT, CONTAINER = DEPLOY / "mlc-llm.service", DEPLOY / "Containerfile"


def values(name: str) -> list[str]:
    """The values of a setting in the unit."""
    return re.findall(rf"^{name}=(.*)$", UNIT.read_text(), flags=re.MULTILINE)


def parsed(arguments: list[str]) -> Any:
    return build_parser(arguments[:1]).parse_args(arguments)


def test_the_unit_starts_a_server_that_exists() -> None:
    program, *arguments = shlex.split(values("ExecStart")[0])
    assert program.endswith("/mlc_llm")
    args = parsed([one for one in arguments if one != "$MODELS"])
    assert args.tls_cert and args.api_key_file and args.on_stall == "exit"
    assert int(values("TimeoutStopSec")[0]) > args.drain_seconds
    assert int(values("WatchdogSec")[0]) > 60  # the default of --stall-seconds


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    text = UNIT.read_text().replace("/opt/mlc-llm/bin/mlc_llm", sys.executable)
    unit = tmp_path / UNIT.name
    unit.write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)],
        capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert UNIT.name not in done.stderr, done.stderr


def test_the_container_starts_a_server_that_exists() -> None:
    text = CONTAINER.read_text()
    program, *arguments = json.loads(re.findall(r"^ENTRYPOINT (.*)$", text, re.MULTILINE)[0])
    assert program == "mlc_llm"
    args = parsed(arguments)
    assert args.host == "0.0.0.0" and f"EXPOSE {args.port}" in text
    assert "USER 10001" in text and f":{args.port}/ready" in text
    for guide in (CONTAINER, DEPLOY.parent / "docs" / "server.md"):
        build = re.findall(r"podman build .*$", guide.read_text(), re.MULTILINE)
        assert all("--format docker" in one for one in build) and build, "no HEALTHCHECK in OCI"
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE):
        for one in source.split():
            assert (DEPLOY.parent / one).exists(), one


def test_a_supervisor_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "notify"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", str(path))
        monkeypatch.setenv("WATCHDOG_USEC", str(10**9))
        supervisor = Supervisor()
        supervisor.say(READY)
        for _ in range(3):
            supervisor.is_well()
        assert [heard.recv(100).decode() for _ in range(2)] == [READY, WATCHDOG]
        heard.setblocking(False)
        with pytest.raises(BlockingIOError):
            heard.recv(100)
    supervisor.say(READY)  # nobody listens
    monkeypatch.delenv("NOTIFY_SOCKET")
    Supervisor().say(READY)


@pytest.mark.slow
def test_the_command_of_the_unit_talks_to_its_supervisor(tmp_path: Path) -> None:
    """READY once it listens, signs of life, STOPPING at SIGTERM; it ends with 0."""
    _, *arguments = shlex.split(values("ExecStart")[0].replace("$MODELS", "mock://echo"))
    own, key = certificate(tmp_path, "unit")
    keys = tmp_path / "keys"
    keys.write_text("secret admin\n")
    keys.chmod(0o600)
    given = {"8443": "0", "0.0.0.0": "127.0.0.1", "/etc/mlc-llm/keys": str(keys)}
    given |= {"/etc/mlc-llm/cert.pem": str(own), "/etc/mlc-llm/key.pem": str(key)}
    command = [sys.executable, "-m", "mlc_llm", *(given.get(one, one) for one in arguments)]
    path = tmp_path / "notify"
    environment = {"MLC_LLM_HOME": str(tmp_path), "NOTIFY_SOCKET": str(path)}
    environment |= {"WATCHDOG_USEC": "1000000", "PATH": "/usr/bin:/bin"}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.bind(str(path))
        heard.settimeout(60)
        with subprocess.Popen(command, env=environment) as process:
            try:
                assert [heard.recv(100).decode() for _ in range(3)] == [READY, WATCHDOG, WATCHDOG]
                process.terminate()
                while (word := heard.recv(100).decode()) == WATCHDOG:
                    pass
                assert word == STOPPING and process.wait(60) == 0
            finally:
                process.kill()
