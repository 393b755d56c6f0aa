"""A server keeps within the files that the system lets it open."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest
from server_process import Process, serving, until

from mlc_llm.serve.server.limits import files
from mlc_llm.serve.server.limits.files import OTHER_FILES, connections_within_files

resource = pytest.importorskip("resource")
FEW = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
"""


@pytest.mark.parametrize(
    ("limits", "wanted", "found", "left"),
    [
        ((1024, 4096), 100, 100, 1024),
        ((1024, 4096), 1000, 1000, 2000 + OTHER_FILES),
        ((1024, -1), 10_000, 10_000, 20_000 + OTHER_FILES),
        ((-1, -1), 10_000, 10_000, -1),
        ((1024, 1024), 1000, (1024 - OTHER_FILES) // 2, 1024),
        ((256, 512), 1024, (512 - OTHER_FILES) // 2, 512),
        ((16, 16), 1024, 1, 16),
    ],
)
def test_as_many_connections_as_files(
    monkeypatch: pytest.MonkeyPatch, limits: tuple[int, int], wanted: int, found: int, left: int
) -> None:
    set_to = [limits]
    monkeypatch.setattr(resource, "RLIM_INFINITY", -1)
    monkeypatch.setattr(resource, "getrlimit", lambda _: set_to[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: set_to.append(both))
    assert connections_within_files(wanted) == found
    assert set_to[-1] == (left, limits[1])


def test_a_limit_that_cannot_be_raised(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (264, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert connections_within_files(1000) == 100
    assert "264 files" in caplog.text and "100 connections" in caplog.text
    monkeypatch.setattr(files, "resource", None)
    assert connections_within_files(1000) == 1000


def health_of(server: Process) -> object:
    """None while the server takes no connection."""
    try:
        return server.get("/health")
    except OSError:
        return None


@pytest.mark.parametrize(("soft", "hard", "warns"), [(80, 4096, False), (120, 120, True)])
def test_more_connections_than_files(soft: int, hard: int, warns: bool) -> None:
    with serving(more=FEW.replace("soft, hard", f"{soft}, {hard}")) as server, ExitStack() as those:
        for _ in range(150):
            address = ("127.0.0.1", server.port)
            those.enter_context(socket.create_connection(address, timeout=30))
        if warns:
            those.close()  # there is no more room until the server sees that one of them has gone
        until(lambda: health_of(server) == (200, {"status": "ok"}), "nobody is answered")
        assert any("there may be 28 connections" in line for line in server.said) == warns
        assert not any("Too many open files" in line for line in server.said)
