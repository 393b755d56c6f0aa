"""From kernels in TVM's tirx dialect to CUDA source and machine code, without a GPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import tvm
import tvm_ffi

from mlc_llm.backends.cuda.architectures import architecture
from mlc_llm.backends.cuda.device_bin import (
    KIND,
    DeviceModule,
    compiled,
    device_module,
    imported_modules,
)
from mlc_llm.backends.cuda.nvrtc import compile_cubin
from mlc_llm.errors import CompileError

HOST = {"kind": "llvm", "mtriple": "x86_64-unknown-linux-gnu", "mcpu": "x86-64-v3"}
"""What the code that launches kernels is compiled for."""
_COMPILE = "tvm_callback_cuda_compile"
_building = threading.Lock()


def cubin_module(module: tvm.IRModule, arch: str) -> bytes:
    """The bytes of `device.bin` of a module of PrimFuncs in the tirx dialect.

    Raises InvalidField for an unknown architecture, UnusableDevice if a package is missing,
    CompileError with the first error of the compiler.
    """
    return compiled(_source_module(module, arch), partial(compile_cubin, arch=arch)).to_bytes()


def source(module: tvm.IRModule, arch: str) -> str:
    """The CUDA source that TVM makes of a module of PrimFuncs in the tirx dialect."""
    return _source_module(module, arch).code.decode()


def target_of(arch: str) -> tvm.target.Target:
    """TVM's target for an architecture. Raises InvalidField for an unknown one."""
    return tvm.target.Target({"kind": "cuda", "arch": architecture(arch).name, "host": HOST})


def source_of(host: tvm.runtime.Module) -> DeviceModule:
    """The one module for the GPU that a module for the host imports. Raises CompileError."""
    pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToTensor")
    found = imported_modules(pack(host).numpy().tobytes())
    kernels = [one.data for one in found if one.kind == KIND]
    if len(kernels) != 1 or len(found) != 1:
        raise CompileError(f"TVM made {len(found)} modules for the GPU, which has to be one")
    return device_module(kernels[0])


@contextmanager
def only_source() -> Iterator[None]:
    """TVM makes CUDA source and does not compile it.

    It would do so where its runtime for CUDA is loaded, that is where there is a driver: with
    other packages, and with fast math.
    """
    with _building:
        compile_of_tvm = tvm_ffi.get_global_func(_COMPILE)
        tvm_ffi.register_global_func(_COMPILE, _as_it_is, override=True)
        try:
            yield
        finally:
            tvm_ffi.register_global_func(_COMPILE, compile_of_tvm, override=True)


def _as_it_is(code: str) -> bytes:
    return code.encode()


def _source_module(module: tvm.IRModule, arch: str) -> DeviceModule:
    with only_source():
        built = tvm.compile(_named(module), target=target_of(arch), tir_pipeline="tirx")
        return source_of(built.mod)


def _named(module: tvm.IRModule) -> tvm.IRModule:
    """The module with its functions' names as symbols: TVM drops functions that have none."""
    functions = {
        name.name_hint: function.with_attr("global_symbol", name.name_hint)
        for name, function in module.functions.items()
    }
    return tvm.IRModule(functions)
