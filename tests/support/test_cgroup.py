"""Limits of control groups, from trees of files as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlc_llm.serve.opening.memory import free_memory
from mlc_llm.support import cgroup, machine

GB = 2**30
UNLIMITED_V1 = 9223372036854771712


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """8 cores, 16 GB of which 12 are free, and no group yet."""
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {16 * GB // 1024} kB\nMemAvailable: {12 * GB // 1024} kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cgroup, "_ROOT", tmp_path / "cgroup")
    monkeypatch.setattr(cgroup, "_OWN_GROUPS", tmp_path / "own")
    return tmp_path / "cgroup"


def own_groups(root: Path, text: str) -> None:
    (root.parent / "own").write_text(text)


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (folder / name.replace("__", ".")).write_text(f"{value}\n")


def memory_v2(folder: Path, limit: object, used: int, files: int = 0) -> None:
    stat = f"anon {used - files}\nactive_file {files // 2}\ninactive_file {files - files // 2}"
    write(folder, memory__max=limit, memory__current=used, memory__stat=stat)


def memory_v1(folder: Path, limit: object, used: int, files: int = 0) -> None:
    stat = f"active_file 0\ninactive_file 0\ntotal_active_file {files}\ntotal_inactive_file 0"
    write(
        folder, memory__limit_in_bytes=limit, memory__usage_in_bytes=used, memory__stat=stat
    )  # fmt: skip


def seen() -> tuple[int | None, int | None, int]:
    found = machine.describe()
    return found.memory_total, found.memory_free, found.cores


def test_without_groups_the_machine_is_what_it_is(root: Path) -> None:
    assert seen() == (16 * GB, 12 * GB, 8)
    assert cgroup.memory_limits() == [] and cgroup.cpu_quota() is None


def test_a_container_of_version_2_sees_its_group_as_the_root(root: Path) -> None:
    own_groups(root, "0::/\n")
    memory_v2(root, 4 * GB, 3 * GB, files=2 * GB)
    assert seen() == (4 * GB, 3 * GB, 8)


def test_a_container_of_version_1_sees_its_group_as_the_root(root: Path) -> None:
    """Its path is that on the host, and there is no such folder."""
    own_groups(root, "9:memory:/docker/0123abcd\n4:cpu,cpuacct:/docker/0123abcd\n0::/x\n")
    memory_v1(root / "memory", 4 * GB, 3 * GB, files=2 * GB)
    write(root / "cpu", cpu__cfs_quota_us=150000, cpu__cfs_period_us=100000)
    assert seen() == (4 * GB, 3 * GB, 2)


def test_a_service_is_held_by_every_group_around_it(root: Path) -> None:
    own_groups(root, "0::/user.slice/session.scope\n")
    memory_v2(root / "user.slice" / "session.scope", 8 * GB, 1 * GB)
    memory_v2(root / "user.slice", 10 * GB, 9 * GB)
    write(root / "user.slice", cpu__max="300000 100000")
    write(root / "user.slice" / "session.scope", cpu__max="max 100000")
    memory_v2(root / "elsewhere", 1000, 0)
    assert seen() == (8 * GB, 1 * GB, 3)


def test_both_versions_at_once(root: Path) -> None:
    own_groups(root, "4:memory:/job\n1:name=systemd:/\n0::/job\n")
    memory_v1(root / "memory" / "job", 6 * GB, 1 * GB)
    memory_v1(root / "memory", UNLIMITED_V1, 3 * GB)
    memory_v2(root / "unified" / "job", 5 * GB, 1 * GB)
    assert seen() == (5 * GB, 4 * GB, 8)


def test_limits_above_what_the_machine_has_change_nothing(root: Path) -> None:
    memory_v2(root, 64 * GB, 1 * GB)
    memory_v1(root / "memory", UNLIMITED_V1, 1 * GB)
    write(root, cpu__max="9900000 100000")
    assert seen() == (16 * GB, 12 * GB, 8)


def test_a_full_group_has_nothing_left(root: Path) -> None:
    memory_v2(root, 4 * GB, 5 * GB)
    assert seen() == (4 * GB, 0, 8)


def test_what_an_engine_may_use_obeys_the_limit(root: Path) -> None:
    memory_v2(root, 4 * GB, GB)
    assert free_memory() == 3 * GB


@pytest.mark.parametrize("limit", ["max", "", "nonsense", "-1", "GB", "1e9"])
def test_what_is_no_limit_limits_nothing(root: Path, limit: str) -> None:
    own_groups(root, "nonsense\n0:\n::\n")
    write(root, memory__max=limit, memory__current=1, cpu__max=limit)
    write(root / "memory", memory__limit_in_bytes="x", memory__usage_in_bytes="")
    assert seen() == (16 * GB, 12 * GB, 8)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000", 8),
        ("200000 100000", 2),
        ("250000 100000", 3),
        ("10000 100000", 1),
        ("9900000 100000", 8),
        ("5 0", 8),
        ("x y", 8),
        ("200000", 8),
    ],
)
def test_a_quota_is_rounded_up_to_whole_cores(root: Path, text: str, cores: int) -> None:
    write(root, cpu__max=text)
    assert machine.usable_cores() == cores


@pytest.mark.parametrize(("quota", "cores"), [(-1, 8), (150000, 2)])
def test_a_quota_of_version_1(root: Path, quota: int, cores: int) -> None:
    write(root / "cpu", cpu__cfs_quota_us=quota, cpu__cfs_period_us=100000)
    assert machine.usable_cores() == cores


def test_the_affinity_mask_counts_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
    write(root, cpu__max="200000 100000")
    assert machine.usable_cores() == 1
