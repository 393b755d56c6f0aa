"""The machine's description, from files of known content and from the real machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from mlc_llm.support import machine


def test_this_machine_is_described() -> None:
    found = machine.describe()
    assert found.cores >= 1
    assert found.system and found.cpu


def test_reads_the_kernels_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("model name\t: A Chip\nflags\t\t: sse2 avx2 avx512_vnni\nmodel name : two\n")
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:        2048 kB\nMemAvailable:    nonsense\n")
    monkeypatch.setattr(machine, "_CPUINFO", cpuinfo)
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    found = machine.describe()
    assert found.cpu == "A Chip"
    assert found.features == ("avx2", "avx512_vnni")
    assert machine.cpu_flags() == {"sse2", "avx2", "avx512_vnni"}
    assert found.memory_total == 2048 * 1024
    assert found.memory_free is None


def test_reads_arm_features(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(
        "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd asimddp sve i8mm\n"
        "CPU implementer\t: 0x41\n\nprocessor\t: 1\nFeatures\t: fp asimd\n"
    )
    monkeypatch.setattr(machine, "_CPUINFO", cpuinfo)
    assert machine.cpu_flags() == {"fp", "asimd", "asimddp", "sve", "i8mm"}
    assert machine.describe().features == ("asimd", "asimddp", "i8mm", "sve")


def test_a_system_without_those_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_CPUINFO", tmp_path / "none")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "none")
    found = machine.describe()
    assert found.features is None
    assert machine.cpu_flags() is None
    assert found.memory_total is None
