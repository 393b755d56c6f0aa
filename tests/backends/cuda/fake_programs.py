"""What tests run in processes where the stand-in is CUDA. Most import no compiler."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import tvm_ffi
from fake_cuda import Fake

from mlc_llm.backends.cuda.linking import CudaLibrary

COLUMNS = 256
GIVING_BACK = ("cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2")
"""Functions of which nobody is told that they failed."""
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
            words, failed = why_not(), fake.failed()
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
