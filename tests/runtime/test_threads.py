"""How many threads compute: cores, a container's quota, and what the user says."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from mlc_llm.errors import InvalidField
from mlc_llm.runtime import threads


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable set, 8 cores, no control groups; all is put back afterwards."""
    for name in ("MLC_NUM_THREADS", "TVM_NUM_THREADS", "TVM_BIND_THREADS"):
        monkeypatch.setenv(name, "")  # so that what the code sets is taken back
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(threads, "_CGROUP_V2", tmp_path / "cpu.max")
    monkeypatch.setattr(threads, "_CGROUP_V1", tmp_path)


def quota_v2(tmp_path: Path, text: str) -> None:
    (tmp_path / "cpu.max").write_text(text)


def quota_v1(tmp_path: Path, quota: str, period: str) -> None:
    (tmp_path / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu.cfs_period_us").write_text(period)


def test_all_cores_without_a_quota() -> None:
    assert threads.available_cores() == 8


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", 8),
        ("200000 100000\n", 2),
        ("250000 100000\n", 3),
        ("10000 100000\n", 1),
        ("9900000 100000\n", 8),
        ("nonsense\n", 8),
        ("", 8),
        ("5 0\n", 8),
        ("x y\n", 8),
    ],
)
def test_quota_of_version_2(tmp_path: Path, text: str, cores: int) -> None:
    quota_v2(tmp_path, text)
    assert threads.available_cores() == cores


@pytest.mark.parametrize(
    ("quota", "period", "cores"), [("-1\n", "100000\n", 8), ("150000\n", "100000\n", 2)]
)
def test_quota_of_version_1(tmp_path: Path, quota: str, period: str, cores: int) -> None:
    quota_v1(tmp_path, quota, period)
    assert threads.available_cores() == cores


def test_tvm_is_told(tmp_path: Path) -> None:
    quota_v2(tmp_path, "300000 100000\n")
    assert threads.configure_threads() == 3
    assert (os.environ["TVM_NUM_THREADS"], os.environ["TVM_BIND_THREADS"]) == ("3", "0")


def test_what_the_user_set_for_tvm_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "5")
    monkeypatch.setenv("TVM_BIND_THREADS", "1")
    assert threads.configure_threads() == 5
    assert os.environ["TVM_BIND_THREADS"] == "1"


def test_the_variable(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("MLC_NUM_THREADS", "4")
    with caplog.at_level(logging.WARNING):
        assert threads.configure_threads() == 4
    assert not caplog.records


def test_more_threads_than_cores_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLC_NUM_THREADS", "9")
    with caplog.at_level(logging.WARNING):
        assert threads.configure_threads() == 9
    assert "MLC_NUM_THREADS=9, but only 8 cores" in caplog.text


@pytest.mark.parametrize("name", ["MLC_NUM_THREADS", "TVM_NUM_THREADS"])
@pytest.mark.parametrize("text", ["0", "-1", "two", "", " ", "1.5", "99999", "²", "1e3"])
def test_bad_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, text: str, name: str) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(InvalidField, match=f"{name}.*1 to 1024"):
        threads.configure_threads()
