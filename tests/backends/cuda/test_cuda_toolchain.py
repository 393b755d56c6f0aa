"""Machine code for GPUs without a toolkit: which package is missing, and what the compiler says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cubin import section
from cuda_kernels import doubled_module

from mlc_llm.backends.cuda import packages
from mlc_llm.backends.cuda.architectures import ARCHITECTURES, architecture, best_for
from mlc_llm.backends.cuda.nvrtc import first_error
from mlc_llm.errors import CompileError, InvalidField, UnusableDevice


@pytest.mark.parametrize(
    ("capability", "wanted"),
    [
        ((7, 5), None),
        ((8, 0), "sm_80"),
        ((8, 6), "sm_86"),
        ((8, 7), "sm_86"),
        ((8, 9), "sm_89"),
        ((9, 0), "sm_90a"),
        ((10, 0), "sm_100a"),
        ((10, 3), None),
        ((12, 0), None),
    ],
)
def test_the_code_that_a_gpu_runs(capability: tuple[int, int], wanted: str | None) -> None:
    found = best_for(capability)
    assert (found.name if found else None) == wanted


def test_an_unknown_architecture() -> None:
    with pytest.raises(InvalidField, match=r"arch = 'sm_75' is not allowed: use one of sm_80, "):
        architecture("sm_75")


@pytest.fixture
def nvidia_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder in which packages are looked for; it is empty."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return tmp_path / "nvidia" / "cu13"


def put(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"no library")


def test_missing_packages_are_named_with_the_command(nvidia_folder: Path) -> None:
    with pytest.raises(UnusableDevice) as error:
        packages.require()
    every = "nvidia-cuda-nvrtc, nvidia-cuda-runtime, nvidia-cuda-crt, nvidia-cuda-cccl"
    assert str(error.value) == f"packages are missing: {every}; pip install 'mlc-llm[cuda]'"
    put(nvidia_folder, *(f for one, f in packages.PACKAGES.items() if one != "nvidia-cuda-crt"))
    with pytest.raises(UnusableDevice, match=r"^a package is missing: nvidia-cuda-crt; pip"):
        packages.require()


def test_packages_may_lie_in_several_folders(
    nvidia_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (first, *others), second = packages.PACKAGES.values(), nvidia_folder.parent.parent / "second"
    put(nvidia_folder, first)
    put(second / "nvidia" / "cu13", *others)
    assert packages.missing()
    monkeypatch.setattr(sys, "path", [*sys.path, str(second)])
    assert packages.missing() == []


def test_a_library_that_does_not_load(nvidia_folder: Path) -> None:
    put(nvidia_folder, *packages.PACKAGES.values())
    with pytest.raises(UnusableDevice, match=r"libnvrtc\.so\.13 does not load.*install nvidia-cud"):
        packages.load_library("nvidia-cuda-nvrtc", "libnvrtc.so.13")


def test_the_first_error_of_a_log() -> None:
    log = 'kernels.cu(1): warning #1: odd\n\nkernels.cu(7): error: "x" is undefined\n  x;\n\0'
    assert first_error(log) == 'kernels.cu(7): error: "x" is undefined'
    assert first_error("nvrtc: bad option\nmore\nand more") == "nvrtc: bad option | more"


def test_the_source_of_a_kernel() -> None:
    from mlc_llm.backends.cuda.build import source

    text = source(doubled_module(), "sm_80")
    assert "__global__ void" in text and "doubled_kernel" in text


@pytest.mark.cuda
def test_machine_code_for_every_architecture() -> None:
    from mlc_llm.backends.cuda.build import cubin_module
    from mlc_llm.backends.cuda.device_bin import device_module

    for name in ARCHITECTURES:
        made = device_module(cubin_module(doubled_module(), name))
        assert made.format == b"cubin"
        assert made.names == ("doubled_kernel",)
        assert made.code.startswith(b"\x7fELF")


@pytest.mark.cuda
def test_an_error_of_the_compiler_is_one_line() -> None:
    from mlc_llm.backends.cuda.nvrtc import compile_cubin

    with pytest.raises(CompileError, match=r"^NVRTC, for sm_80: kernels\.cu\(2\): error: .*\by\b"):
        compile_cubin("__global__ void f(int* x) {\n  x[0] = y;\n  z;\n}", "sm_80")


@pytest.mark.cuda
def test_divisions_are_exact() -> None:
    """With fast math a division by x would be a product with about 1/x."""
    from mlc_llm.backends.cuda.nvrtc import compile_cubin

    def code(quotient: str) -> bytes:
        kernel = f'extern "C" __global__ void f(float* x) {{ x[0] = {quotient}; }}'
        return section(compile_cubin(kernel, "sm_80"), ".text.f")

    assert code("x[1] / x[2]") == code("__fdiv_rn(x[1], x[2])")
    assert code("x[1] / x[2]") != code("__fdividef(x[1], x[2])")
