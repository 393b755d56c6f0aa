"""`benchmarks/gpu_products.py`, without a GPU: its kernels on the emulator."""

from __future__ import annotations

import sys
from pathlib import Path

import emulated_models  # brings the folder of the emulator
import pytest
from fake_cuda import emulated_machine_code, run_in_fake

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks"))

import gpu_products

from mlc_llm.backends.cuda import driver


def test_without_a_gpu_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_of_nobody.so.1")
    monkeypatch.setattr(sys, "argv", ["gpu_products.py"])
    assert gpu_products.main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu_products: no NVIDIA driver can be loaded (")


@pytest.mark.slow
def test_all_numbers_are_right(fake: dict[str, str], tmp_path: Path) -> None:
    def compiled(source: str) -> bytes:
        emulated_models.compile_emulated(source, tmp_path / "emulated.so")
        return emulated_machine_code(tmp_path / "emulated.so")

    gpu_products.build(128, "F16", tmp_path, compiled)
    fake = {**fake, "PYTHONPATH": f"{Path(gpu_products.__file__).parent}:{fake['PYTHONPATH']}"}
    said = run_in_fake(fake, gpu_products.compare, str(tmp_path), 9, 128, "F16").splitlines()
    assert said[0] == "Fake GPU, sm_90a: 9 rows, 128 x 128, F16"
    assert [line.partition(":")[0] for line in said[1:]] == list(gpu_products.WORST)
    assert all(", right, " in line for line in said[1:]), said
