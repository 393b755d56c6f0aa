"""`mlc_llm doctor`: the report and the problems it finds."""

from __future__ import annotations

import json
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from mlc_llm.cli import checkup
from mlc_llm.cli.__main__ import main
from mlc_llm.errors import CacheError
from mlc_llm.support.machine import Machine

DiskUsage = namedtuple("DiskUsage", "total used free")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "a.lock").touch()
    (tmp_path / "models" / "a.gguf").write_bytes(b"x" * 2500)
    monkeypatch.setattr(checkup, "cache_dir", lambda: tmp_path)
    monkeypatch.setattr(checkup, "LOADED", ())
    for name in ("TVM_NUM_THREADS", "TVM_BIND_THREADS"):  # the runtime sets what is not set
        monkeypatch.setenv(name, "1")
    return tmp_path


def test_text(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in ("machine:", "versions:", "apache-tvm ", "cache:", str(cache), "no problems"):
        assert words in out
    assert "models/a.gguf  2.5 kB" in out
    assert "a.lock" not in out


def test_json(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == []
    assert found["cache"]["models/a.gguf"] == "2.5 kB"


def test_libraries_do_load_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "LOADED", ("tvm", "tvm_ffi_orcjit"))
    assert checkup.examine().problems == []


def problems(capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["doctor"]) == 1
    return "\n".join(
        line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")
    )


def test_an_unusable_cache_folder(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unusable() -> Path:
        raise CacheError("the cache folder x is read-only; set MLC_LLM_HOME")

    monkeypatch.setattr(checkup, "cache_dir", unusable)
    assert "the cache folder x is read-only" in problems(capsys)


def test_a_cache_folder_that_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checkup, "refusal", lambda: "other users can write /x")
    assert main(["doctor"]) == 0
    said = "remark: the usual cache folder is not used, because other users can write /x"
    assert said in capsys.readouterr().out


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: DiskUsage(10**9, 10**9, 1000))
    assert "only 1.0 kB of disk is free" in problems(capsys)


def test_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    poor = Machine("Linux", "A Chip", 1, (), 10**9, 10**8)
    monkeypatch.setattr("mlc_llm.support.machine.describe", lambda: poor)
    assert "only 100.0 MB of memory is free" in problems(capsys)


def test_a_missing_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ["no-such-package-anywhere>=2,<3", 'of-an-extra; extra == "test"']
    monkeypatch.setattr("importlib.metadata.requires", lambda name: wanted)
    words = problems(capsys)
    assert "the package no-such-package-anywhere is missing" in words
    assert "of-an-extra" not in words


def test_not_installed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(checkup, "DISTRIBUTION", "no-such-package-anywhere")
    assert "no-such-package-anywhere is not installed" in problems(capsys)


def test_the_choice(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("MLC_LLM_KERNELS", "portable")
    assert main(["doctor"]) == 0
    assert "portable (forced)" in capsys.readouterr().out


def test_a_choice_that_is_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLC_LLM_KERNELS", "quick")
    assert "MLC_LLM_KERNELS" in problems(capsys)
    monkeypatch.delenv("MLC_LLM_KERNELS")
    monkeypatch.setenv("MLC_LLM_DEVICE", "gpu")
    assert "MLC_LLM_DEVICE = 'gpu' is not allowed" in problems(capsys)


def test_an_old_processor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("mlc_llm.backends.cpu.target.cpu_flags", lambda: frozenset({"sse2"}))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "portable (the best for this machine)" in out
    assert "remark: the fastest kernels, amx, need features missing here: avx512f" in out


def test_an_old_arm_processor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    monkeypatch.setattr("mlc_llm.backends.cpu.target.cpu_flags", lambda: frozenset({"asimd"}))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "portable (the best for this machine)" in out
    assert "remark: the fastest kernels, i8mm, need features missing here: asimddp i8mm" in out


def test_a_library_that_does_not_load(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> Any:
        raise OSError("libfoo.so: cannot open")

    monkeypatch.setattr(checkup, "LOADED", ("tvm",))
    monkeypatch.setattr(checkup.importlib, "import_module", broken)
    report = checkup.examine()
    assert report.problems == ["tvm does not load (libfoo.so: cannot open); install mlc-llm again"]
