"""What is said where no model can run on a GPU: in one line, with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fake_cuda import run_in_fake
from fake_programs import doctor, fail_each_call_of_a_look, look_at_gpus

from mlc_llm.backends.cuda import driver, linking, packages, state
from mlc_llm.backends.cuda.driver import Gpu
from mlc_llm.cli import checkup
from mlc_llm.errors import InvalidField
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.serve.opening.arguments import detect_device

CASES = [
    ({}, None),
    ({"FAKE_CUDA_GPUS": "0"}, "the NVIDIA driver shows no GPU; look at nvidia-smi and CUDA_VIS"),
    (
        {"FAKE_CUDA_VERSION": "12080"},
        "the NVIDIA driver knows CUDA 12.8 and 13.0 is needed; install NVIDIA's driver 580 or",
    ),
    ({"FAKE_CUDA_CAPABILITY": "75"}, "Fake GPU is sm_75, and there is code for sm_80, sm_86, "),
    (
        {"FAKE_CUDA_MEMORY": str(300 << 20)},
        "only 300 MiB of the 300 MiB of Fake GPU are free, and the default model needs 512; end",
    ),
    (
        {"FAKE_CUDA_FAILS": "cuDevicePrimaryCtxRetain=2"},
        "driver failed in cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (out of memory)",
    ),
]


def test_what_is_missing_on_a_machine(fake: dict[str, str]) -> None:
    said = run_in_fake(fake, look_at_gpus, json.dumps([case for case, _ in CASES])).splitlines()
    for line, (_, words) in zip(said, CASES, strict=True):
        assert line == "None" if words is None else words in line


def test_any_call_of_the_driver_may_fail(fake: dict[str, str]) -> None:
    run_in_fake(fake, fail_each_call_of_a_look)


def test_the_report_of_the_doctor(fake: dict[str, str]) -> None:
    found = json.loads(run_in_fake(fake, doctor, FAKE_CUDA_GPUS=2))
    assert found["nvidia driver"] == "for CUDA 13.0"
    assert found["gpu 0"] == found["gpu 1"] == "Fake GPU, sm_90, 1.1 GB free of 1.1 GB"
    assert found["models"] == "can run on gpu 0"
    assert found["one model on several"] == "NCCL is there"


def test_the_doctor_says_nothing_of_several_gpus_where_there_is_one(fake: dict[str, str]) -> None:
    assert "one model on several" not in json.loads(run_in_fake(fake, doctor, FAKE_CUDA_GPUS=1))


def test_what_a_model_on_several_gpus_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "roots", lambda *folder: [])
    assert state.look().together == "NCCL is missing: pip install 'mlc-llm[cuda-ranks]'"


@pytest.fixture
def no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libcuda_of_nobody.so.1")


@pytest.mark.parametrize("device", ["cuda:²", "cuda:" + "9" * 5000, "cuda:-1", "cpu:²"])
def test_an_index_is_a_small_number(device: str) -> None:
    with pytest.raises(InvalidField, match="should be 'auto', 'cpu' or 'cuda'"):
        detect_device(device)


@pytest.mark.usefixtures("no_driver")
@pytest.mark.parametrize("device", ["cuda", "cuda:0"])
def test_a_gpu_is_refused_where_there_is_no_driver(device: str) -> None:
    with pytest.raises(InvalidField) as error:
        detect_device(device)
    words = str(error.value)
    assert words.startswith(
        f"device = '{device}' is not allowed: give 'cpu' or 'auto' (or set MLC_"
    )
    assert "no NVIDIA driver can be loaded (libcuda_of_nobody.so.1: cannot open shared" in words
    assert "\n" not in words


@pytest.mark.usefixtures("no_driver")
def test_the_doctor_needs_no_driver() -> None:
    report = checkup.examine()
    assert report.sections["gpu"]["nvidia driver"].startswith("no NVIDIA driver can be loaded (")
    assert not any("driver" in words for words in report.problems + report.remarks)


@pytest.mark.parametrize(
    ("requires", "capability", "words"),
    [
        (("sm_90a",), (9, 0), None),
        (("sm_80",), (8, 9), None),
        (
            ("sm_90a",),
            (8, 0),
            "compiled for sm_90a, and A GPU is sm_80; compile it with --arch sm_",
        ),
        (
            ("sm_86",),
            (8, 0),
            "compiled for sm_86, and A GPU is sm_80; compile it with --arch sm_80",
        ),
        (("sm_80",), (12, 0), "compiled for sm_80, and A GPU is sm_120$"),
        ((), (9, 0), "compiled for no known GPU"),
    ],
)
def test_machine_code_for_another_gpu(
    requires: tuple[str, ...], capability: tuple[int, int], words: str | None
) -> None:
    gpu = Gpu(0, "A GPU", capability, 1 << 40, 1 << 40)
    if words is None:
        linking.check_fits(Path("lib"), requires, gpu)
        return
    with pytest.raises(BrokenLibrary, match=f"^lib: it is {words}"):
        linking.check_fits(Path("lib"), requires, gpu)
