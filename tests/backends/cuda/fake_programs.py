"""What tests run in processes where the stand-in is CUDA. Most import no compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tvm_ffi
from fake_cuda import Fake

from mlc_llm.backends.cuda.linking import CudaLibrary

COLUMNS = 256
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
