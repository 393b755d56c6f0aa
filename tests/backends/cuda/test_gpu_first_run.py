"""`benchmarks/gpu_first_run.py`, without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_cuda import fake_machine_code

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import gpu_first_run
from gpu_kernels import COLUMNS, LINKS, build

from mlc_llm.backends.cuda import driver


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_of_nobody.so.1")
    monkeypatch.setattr(sys, "argv", ["gpu_first_run.py"])
    assert gpu_first_run.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_first_run: no NVIDIA driver can be loaded (")


def test_it_measures_the_stand_in_and_sees_that_its_numbers_are_wrong(
    fake: dict[str, str], tmp_path: Path
) -> None:
    assert (gpu_first_run.COLUMNS, gpu_first_run.LINKS) == (COLUMNS, LINKS)
    build("sm_90a", tmp_path, lambda text: fake_machine_code())
    command = [
        sys.executable,
        gpu_first_run.__file__,
        "--run",
        str(tmp_path),
        "--size",
        str(1 << 16),
    ]
    done = subprocess.run(
        command, env=os.environ | fake, capture_output=True, text=True, check=False, timeout=300
    )
    assert (done.returncode, done.stderr) == (1, "")
    said = done.stdout.splitlines()
    assert said[0] == "GPU: Fake GPU, sm_90, 1024 MiB free"
    assert "numbers of a kernel: WRONG" in said
    for words in (
        "copy to the GPU ",
        "a kernel reads ",
        "a launch from the VM: ",
        "a graph of 20 ",
    ):
        assert any(line.startswith(words) for line in said), words
