"""`device.bin`, from a kernel to its launch: on the stand-in for CUDA, which computes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cubin import opcodes
from cuda_kernels import doubler_module
from fake_cuda import DEVICE, MODULE, fake_machine_code, needs_fake, run_in_fake
from fake_programs import build, launch

from mlc_llm.backends.cuda.codegen import DEVICE_FILE, compile_module
from mlc_llm.backends.cuda.device_bin import device_module
from mlc_llm.backends.cuda.early_launch import NEXT, VARIABLE, WAIT, launched_as_wanted
from mlc_llm.errors import CompileError, InvalidField


def test_machine_code_takes_the_place_of_the_source(doubler_library: Path) -> None:
    data = (doubler_library / DEVICE_FILE).read_bytes()
    found = device_module(data)
    assert found.format == b"cubin"
    assert found.names == ("doubled_kernel",)
    assert found.code == fake_machine_code()
    assert found.to_bytes() == data


def test_bytes_that_are_no_module(doubler_library: Path) -> None:
    data = (doubler_library / DEVICE_FILE).read_bytes()
    for length in range(len(data)):
        with pytest.raises(CompileError, match="ends too early"):
            device_module(data[:length])
    with pytest.raises(CompileError, match="more in it"):
        device_module(data + b"x")


def test_an_error_of_the_compiler_leaves_no_file(tmp_path: Path) -> None:
    def fail(text: str) -> bytes:
        raise CompileError("no")

    with pytest.raises(CompileError, match="no"):
        compile_module(doubler_module(), "sm_80", tmp_path, fail)
    assert list(tmp_path.iterdir()) == []


def check_launches(said: str, *, early: bool = True) -> None:
    calls, alive, after = json.loads(said)
    (loaded,) = [one for one in calls if one.startswith("cuModuleLoadData")]
    assert loaded == "cuModuleLoadData 7fELF"
    (first, second) = [one for one in calls if one.startswith("cuLaunchKernelEx")]
    assert first == second and first.endswith(f" early {int(early)}")
    assert first.startswith("cuLaunchKernelEx doubled_kernel grid 3,1,1 block 128,1,1 shared 0 ")
    assert alive[DEVICE] >= 2 and alive[MODULE] == 1
    assert after == [0] * len(after)


def test_a_kernel_is_launched_from_it(fake: dict[str, str], doubler_library: Path) -> None:
    check_launches(run_in_fake(fake, launch, str(doubler_library)))


@needs_fake
def test_launches_are_plain_where_that_is_asked_for(
    fake: dict[str, str], doubler_library: Path, tmp_path: Path
) -> None:
    """Also of a driver that refuses the others; and code for older GPUs has no others."""
    refused = {"FAKE_CUDA_EARLY": 0}
    with pytest.raises(AssertionError, match="CUDALaunch Error: CUDA_ERROR_FAKE"):
        run_in_fake(fake, launch, str(doubler_library), **refused)
    said = run_in_fake(fake, launch, str(doubler_library), **refused, **{VARIABLE: 0})
    check_launches(said, early=False)
    compile_module(doubler_module(), "sm_80", tmp_path, lambda source: compiled_once(source, 0))
    said = run_in_fake(fake, launch, str(tmp_path), FAKE_CUDA_CAPABILITY=80)
    check_launches(said, early=False)


def compiled_once(source: str, waits: int) -> bytes:
    """Instead of a compiler: it looks at how often kernels wait for others."""
    assert source.count(WAIT) == source.count(NEXT) == waits
    return fake_machine_code(90 if waits else 80)


def test_each_kernel_waits_first(tmp_path: Path) -> None:
    compile_module(doubler_module(), "sm_90a", tmp_path, lambda source: compiled_once(source, 1))


def test_another_setting_is_refused(monkeypatch: pytest.MonkeyPatch, doubler_library: Path) -> None:
    monkeypatch.setenv(VARIABLE, "yes")
    with pytest.raises(InvalidField, match=f"{VARIABLE} = 'yes' is not allowed: use 0 or 1"):
        launched_as_wanted((doubler_library / DEVICE_FILE).read_bytes())


@pytest.mark.cuda
def test_machine_code_of_a_whole_library(fake: dict[str, str], tmp_path: Path) -> None:
    compile_module(doubler_module(), "sm_90a", tmp_path)
    check_launches(run_in_fake(fake, launch, str(tmp_path)))
    code = device_module((tmp_path / DEVICE_FILE).read_bytes()).code
    assert opcodes(code, "doubled_kernel") >= {"ACQBULK", "PREEXIT"}


@pytest.mark.slow
def test_the_same_is_built_where_there_is_a_gpu(
    fake: dict[str, str], doubler_library: Path, tmp_path: Path
) -> None:
    run_in_fake(fake, build, str(tmp_path))
    assert (tmp_path / DEVICE_FILE).read_bytes() == (doubler_library / DEVICE_FILE).read_bytes()
