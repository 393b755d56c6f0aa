"""From a Relax module to the files of a library for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import tvm
from tvm import relax

from mlc_llm.backends.base import Compiled
from mlc_llm.backends.cpu.codegen import BYTECODE_FILE, KERNELS_FILE
from mlc_llm.backends.cuda.build import only_source, source_of, target_of
from mlc_llm.backends.cuda.device_bin import compiled
from mlc_llm.backends.cuda.nvrtc import compile_cubin

DEVICE_FILE = "device.bin"


def pipeline() -> tvm.transform.Pass:
    """As that of the CPU (`backends/cpu/codegen.py`), but for two things: what TVM itself would
    compute with kernels in its other dialect stays out, because a module has one dialect. And
    `RewriteDataflowReshape` fails on kernels in the tirx dialect, so a reshape is kept as it is.
    """
    change = relax.transform
    return tvm.transform.Sequential(
        [
            change.LegalizeOps(skip_ops=["relax.reshape"]),
            change.ToNonDataflow(),
            change.RemovePurityChecking(),
            change.CallTIRRewrite(),
            change.StaticPlanBlockMemory(),
            change.LowerAllocTensor(),
            change.CanonicalizeBindings(),
            change.LowerRuntimeBuiltin(),
            change.ComputePrimValue(),
            change.VMShapeLower(),
            change.AttachGlobalSymbol(),
        ]
    )


def compile_module(
    module: tvm.IRModule,
    arch: str,
    folder: Path,
    compile_source: Callable[[str], bytes] | None = None,
) -> Compiled:
    """Writes bytecode, the host's code, and the kernels into `folder`, which exists.

    module: its PrimFuncs are in the tirx dialect. compile_source: makes machine code of CUDA
    source; None: NVRTC does it. Raises InvalidField for an unknown architecture, UnusableDevice
    for a missing package, CompileError with the first error of the compiler.
    """
    target = target_of(arch)
    with only_source():
        built = relax.build(module, target=target, relax_pipeline=pipeline(), tir_pipeline="tirx")
        (host,) = (one for one in built.mod.imports if one.kind == "llvm")
        source = source_of(host)
    kernels = compiled(source, compile_source or partial(compile_cubin, arch=arch))
    (folder / DEVICE_FILE).write_bytes(kernels.to_bytes())
    built.mod.write_to_file(str(folder / BYTECODE_FILE))
    host.write_to_file(str(folder / KERNELS_FILE))
    return Compiled((BYTECODE_FILE, KERNELS_FILE, DEVICE_FILE), str(target), (arch,))
