"""What tests run in processes where the stand-in is CUDA. Most import no compiler."""

from __future__ import annotations

import gc
import itertools
import json
import os
from array import array
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi
from fake_cuda import Fake

from mlc_llm.backends.cuda import staging
from mlc_llm.backends.cuda.linking import CudaLibrary

COLUMNS = 256
GIVING_BACK = (
    *("cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"),
    *("cudaFree", "cudaFreeHost", "cudaEventDestroy", "cuModuleUnload"),
    *("cudaGraphDestroy", "cudaGraphExecDestroy", "cudaStreamDestroy"),
)
"""Functions of which nobody is told that they failed."""
MENDED_BY_TVM = ("cudaSetDevice", "cudaGetDevice", "cudaMemGetInfo", "cudaMalloc")
"""TVM goes on where these fail: its allocator tries again."""
FILES = ("vm.bin", "kernels.o", "device.bin")


def launch(folder: str) -> None:
    """Links the library of `Doubler`, runs it twice, and lets go of everything. Prints the calls of
    CUDA, and what was alive before and after."""
    fake, library = Fake(), CudaLibrary(*(Path(folder) / name for name in FILES))
    x = gpu_tensor(3, COLUMNS // 2, 2)
    fake.log()
    for _ in range(2):
        y = library["forward"](x)
    assert y.shape == (3, COLUMNS) and y.device == x.device
    calls, alive = fake.log(), fake.alive()
    del x, y, library
    print(json.dumps([calls, alive, fake.alive()]))


def gpu_tensor(*shape: int) -> Any:
    """float32, from TVM's own allocator."""
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    gpu, dtype = tvm_ffi.device("cuda", 0), tvm_ffi.dtype("float32")
    return allocate(tvm_ffi.Shape(shape), dtype, gpu, None)


def build(folder: str) -> None:
    """Compiles the library of `Doubler` where TVM has a runtime for CUDA, as on machines with a
    GPU. (This one imports the compiler.)"""
    from cuda_kernels import doubler_module
    from fake_cuda import fake_machine_code

    from mlc_llm.backends.cuda.codegen import compile_module

    assert tvm_ffi.get_global_func("ffi.Module.create.cuda", allow_missing=True)
    compile_module(doubler_module(), "sm_90a", Path(folder), lambda text: fake_machine_code())


def look_at_gpus(cases: str) -> None:
    """Prints, for each case of settings of the stand-in, why no model runs on GPU 0."""
    from mlc_llm.backends.cuda.state import why_not

    for case in json.loads(cases):
        os.environ.update(case)
        print(why_not())
        for name in case:
            del os.environ[name]


def fail_each_call_of_a_look() -> None:
    """Any call of the driver may fail: then the line names it, and no context is held."""
    from mlc_llm.backends.cuda.state import why_not

    fake = Fake()
    for number in itertools.count(1):
        with fake.failing(number):
            words, failed = why_not() or "", fake.failed()
        if not failed:
            break
        said = f"the NVIDIA driver failed in {failed}: CUDA_ERROR_FAKE (" in words
        assert said != (failed in GIVING_BACK), words
        assert fake.alive() == [0] * len(fake.alive())
    assert number > 8


def doctor() -> None:
    """Prints the section of the doctor's report."""
    from mlc_llm.cli.checkup import Report, _look_at_gpus

    report = Report()
    _look_at_gpus(report)
    print(json.dumps(report.sections["gpu"]))


def small_blocks(device_file: Any) -> None:
    """Arrays are copied in several chunks, and staging has to grow."""
    device_file.CHUNK, staging.FIRST_SIZE = 1000, 256


def use_device(device_file: Any, folder: str) -> str:
    """Everything that a device does, once. Checks what the tensors hold. The call that failed until
    then, although nobody was told: what is given back afterwards does not count."""
    device = device_file.CudaDevice()
    assert not device.read(device.zeros((3, 5), "float16")).any()
    assert device.read(device.zeros((0, 7), "int32")).shape == (0, 7)
    values = np.arange(700, dtype=np.float32).reshape(7, 100)
    for one in (values, values[:, ::2], values.astype(np.uint8)):
        assert (device.read(device.upload(one)) == one).all()
    rows = device.zeros((3, 4), "int32")
    device.write(rows, 1, [5, 6, 7, 8])
    assert device.read(rows).tolist() == [[0] * 4, [5, 6, 7, 8], [0] * 4]
    check_staging(device)
    library = device.link(Path(folder), FILES, ("sm_90a",))
    library["forward"](device.zeros((3, COLUMNS // 2, 2), "float32"))
    return Fake().failed()


def check_staging(device: Any) -> None:
    """Tables of all kinds arrive, also where their sizes change and grow."""
    stage = device.staging()
    for count in (4, 4, 0, 100):
        numbers, floats = array("i", range(2 * count)), array("f", [0.5] * count)
        pairs, plain = stage.tensors((numbers, 2), (floats, 0))
        assert device.read(pairs).tolist() == [[2 * i, 2 * i + 1] for i in range(count)]
        assert device.read(plain).tolist() == floats.tolist()


def device_calls(folder: str) -> None:
    """Prints what is alive at the end, and the calls of CUDA that staging and chunks make."""
    from mlc_llm.backends.cuda import device as device_file

    small_blocks(device_file)
    fake, device = Fake(), device_file.CudaDevice()
    stage = device.staging()
    tables = [(array("i", [1, 2, 3, 4]), 2), (array("f", [0.5] * 20), 0)]
    first = stage.tensors(*tables)
    fake.log()
    assert stage.tensors(*tables) is first
    step = fake.log()
    tensor = device.upload(np.zeros(2500, np.uint8))
    upload = [line for line in fake.log() if "Memcpy" in line]
    del tensor, first, stage, device
    use_device(device_file, folder)
    print(json.dumps([step, upload, fake.alive()]))


def fail_calls_of_a_device(folder: str, loses: int, every: int) -> None:
    """Each call of all that a device does fails once, in a process of its own. loses: all later
    calls fail too. every: so many calls are passed over each time. Prints what `failing_once` does.
    """
    from mlc_llm.backends.cuda import device as device_file

    small_blocks(device_file)
    use_device(device_file, folder)  # loads what is loaded once
    gc.disable()  # what is given back must not wait for it
    before = Fake().calls()
    use_device(device_file, folder)
    for number in range(1, Fake().calls() - before + 1, every):
        if not (child := os.fork()):
            failing_once(number, device_file, folder, loses)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        assert not status, f"at call {number}: status {status}"


def failing_once(number: int, device_file: Any, folder: str, loses: int) -> None:
    """Prints the function that failed, whether it did so silently and in use, the error, and what
    is alive then."""
    fake, error, silent = Fake(), None, ""
    with fake.failing(number, 700):
        fake.lose(number if loses else 0)
        try:
            silent = use_device(device_file, folder)
        except Exception as caught:  # what TVM raises has no base class of its own
            error = str(caught)
        failed = fake.failed()
    print(json.dumps([failed, silent, error, fake.alive()]), flush=True)


def full_memory() -> None:
    """Prints what is said where the 10 MiB of the GPU do not suffice."""
    from mlc_llm.backends.cuda import driver
    from mlc_llm.backends.cuda.device import CudaDevice

    driver.LEAST_FREE = 0
    fake, device = Fake(), CudaDevice()
    kept = device.zeros((6 << 20,), "uint8")
    try:
        device.zeros((5 << 20,), "uint8")
    except MemoryError as error:
        print(error)
    assert fake.alive()[0] == 1
    del kept
    assert device.zeros((5 << 20,), "uint8").shape == (5 << 20,)
