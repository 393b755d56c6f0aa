"""From a Relax module to machine code for a CPU: VM bytecode and object files."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tvm
from tvm import relax
from tvm.relax import vm_build

from mlc_llm.backends.base import Compiled
from mlc_llm.backends.cpu.built_kernels import BuiltKernels, kernel_file
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.overwrites import check_overwrites
from mlc_llm.backends.cpu.team_code import compile_team
from mlc_llm.backends.cpu.threads import compiling_threads
from mlc_llm.backends.cpu.workspace import IntoWorkspaces
from mlc_llm.backends.needless_calls import WithoutNeedlessCalls

BYTECODE_FILE = "vm.bin"
TEAM_FILE = "team.o"
_NEEDLESS = ("s_tir.CompactBufferAllocation",)
"""Passes that take a third of the build and change no kernel of ours, which allocate what they
use."""
_NEEDLESS_WITHOUT_TILES = (
    *_NEEDLESS,
    "s_tir.HoistIfThenElse",
    "s_tir.InjectPermutedLayout",
    "s_tir.InjectVirtualThread",
)
"""A tenth more: what is for threads of GPUs, and for conditions, which LLVM moves to the same
places. In three kernels for AMX it does not."""


def needless(isa: Isa) -> tuple[str, ...]:
    """Passes of TVM that are left out of the build of these kernels."""
    return _NEEDLESS if isa.amx_tiles else _NEEDLESS_WITHOUT_TILES


def pipeline(workspaces: IntoWorkspaces) -> tvm.transform.Pass:
    """The passes of `relax.build`, without CUDA graphs, and without `KillAfterLastUse`.

    That one adds a VM call for each value that is used no more: a fourth of all calls of a step.
    They free nothing that a later kernel of the step could use, because `StaticPlanBlockMemory` has
    shared the storage out.
    """
    change = relax.transform
    return tvm.transform.Sequential(
        [
            relax.backend.DispatchSampling(),
            relax.backend.DispatchSortScan(),
            change.LegalizeOps(),
            change.RewriteDataflowReshape(),
            change.ToNonDataflow(),
            change.RemovePurityChecking(),
            change.CallTIRRewrite(),
            change.StaticPlanBlockMemory(),
            workspaces,
            change.LowerAllocTensor(),
            change.CanonicalizeBindings(),  # `KillAfterLastUse` begins with it: no copies
            change.LowerRuntimeBuiltin(),
            change.ComputePrimValue(),
            change.VMShapeLower(),
            WithoutNeedlessCalls(),
            change.AttachGlobalSymbol(),
        ]
    )


def compile_module(
    module: tvm.IRModule,
    target: tvm.target.Target,
    folder: Path,
    requires: tuple[str, ...],
    without: Sequence[str] = (),
    libraries: Path | None = None,
) -> Compiled:
    """Writes the files into `folder`, which exists. without: passes of TVM that are left out.
    libraries: a folder of libraries whose kernels are taken where they are the same."""
    check_overwrites(module)
    workspaces = IntoWorkspaces()
    with target, tvm.transform.PassContext(disabled_pass=list(without)):
        lowered = pipeline(workspaces)(module)
    # The parts of `relax.build`, which would compile all kernels one after the other.
    bytecode = relax.ExecBuilder()
    kernels = vm_build._filter_tir(vm_build._vmcodegen(bytecode, lowered))
    vm_build._vmlink(bytecode, target).mod.write_to_file(str(folder / BYTECODE_FILE))
    objects = compile_kernels(kernels, target, folder, without, BuiltKernels(libraries))
    compile_team(target, folder / TEAM_FILE)
    return Compiled((BYTECODE_FILE, *objects, TEAM_FILE), str(target), requires, workspaces.found)


def compile_kernels(
    module: tvm.IRModule,
    target: tvm.target.Target,
    folder: Path,
    without: Sequence[str],
    built: BuiltKernels,
) -> list[str]:
    """Names of the object files, one a kernel, so that all cores work, however many there are."""
    options = (str(target), tvm.__version__, *without)

    def compile_one(kernel: tuple[str, str, tvm.tirx.PrimFunc]) -> str:
        text, name, func = kernel
        file = kernel_file(name, text, *options)
        if not built.take(file, folder):
            with tvm.transform.PassContext(disabled_pass=list(without)):
                made = tvm.tirx.build(tvm.IRModule({name: func}), target=target)
            made.write_to_file(str(folder / file))
        return file

    kernels = [
        (func.script(show_meta=True), name.name_hint, func)
        for name, func in module.functions.items()
    ]
    # The longest ones first, so that no core waits for another one in the end.
    kernels.sort(key=lambda one: -len(one[0]))
    cores = ThreadPoolExecutor(compiling_threads(), thread_name_prefix="compile")
    try:
        return sorted(cores.map(compile_one, kernels))
    finally:
        cores.shutdown(cancel_futures=True)
