"""Ports are tried before Ray starts: what is wrong with one is said in a line. No Ray."""

from __future__ import annotations

import json
import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from mlc_llm.cli.__main__ import main
from mlc_llm.errors import InvalidField
from mlc_llm.ray.ports import OF_HAPROXY, OF_INGRESSES, check_free, choose_ways_of_ray


@pytest.fixture
def taken() -> int:
    """A port at which somebody listens."""
    with socket.create_server(("", 0)) as server:
        yield server.getsockname()[1]  # type: ignore[misc]


@pytest.fixture(autouse=True)
def with_haproxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mlc_llm.ray.ports.find_spec", lambda name: name)


def test_free_ports_are_chosen() -> None:
    chosen = {"RAY_SERVE_ENABLE_HA_PROXY": "0"}
    choose_ways_of_ray(chosen)
    ports = {int(chosen[name]) for name in OF_HAPROXY}
    assert len(ports) == 2
    for one in ports:
        check_free("port", "127.0.0.1", one)
    assert chosen["RAY_SERVE_ENABLE_HA_PROXY"] == "0"  # a value that is set stays
    given = {OF_HAPROXY[0]: str(ports.pop())}
    choose_ways_of_ray(given)
    assert given[OF_HAPROXY[0]] != given[OF_HAPROXY[1]]


def _server() -> socket.socket:
    """Listens at a port whose neighbours are free. Linux gives none of this range away, so that no
    other test takes one meanwhile."""
    for port in random.sample(range(20_000, 30_000, 4), 100):
        with suppress(OSError, InvalidField):
            for one in (2, 3):
                check_free("port", "", port + one)
            return socket.create_server(("", port))
    raise AssertionError("no port is free")


def test_ingresses_of_two_applications_have_other_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    with _server() as first:
        there = first.getsockname()[1]
        monkeypatch.setattr("mlc_llm.ray.ports.RANGES", (there, there + 2))
        chosen: dict[str, str] = {}
        choose_ways_of_ray(chosen)
    low, high = (int(chosen[name]) for name in OF_INGRESSES)
    assert (low, high) == (there + 2, there + 101)
    given = {OF_INGRESSES[0]: "30500"}
    choose_ways_of_ray(given)
    assert given[OF_INGRESSES[0]] == "30500" and OF_INGRESSES[1] not in given


def test_a_cluster_is_left_as_it_is() -> None:
    there = {"RAY_ADDRESS": "auto", OF_HAPROXY[0]: "none"}
    choose_ways_of_ray(there)
    assert there == {"RAY_ADDRESS": "auto", OF_HAPROXY[0]: "none"}


@pytest.mark.parametrize("name", OF_HAPROXY)
def test_a_taken_port_is_named(name: str, taken: int) -> None:
    with pytest.raises(InvalidField, match=f"{name}.*{taken}.*in use"):
        choose_ways_of_ray({name: str(taken)})


@pytest.mark.parametrize("text", ["", "0", "65536", "http", "-1"])
def test_a_port_is_a_number(text: str) -> None:
    with pytest.raises(InvalidField, match="1 to 65535"):
        choose_ways_of_ray({OF_HAPROXY[1]: text})


def test_the_command_says_it_in_a_line(
    taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv(OF_HAPROXY[0], str(taken))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    file = tmp_path / "app.yaml"
    file.write_text(json.dumps({}))
    assert main(["serve", "--ray", str(file)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert OF_HAPROXY[0] in line and str(taken) in line
