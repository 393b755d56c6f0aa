"""From a Relax module to machine code for a CPU: VM bytecode and two object files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import tvm
from tvm import relax

from mlc_llm.backends.base import Compiled
from mlc_llm.backends.cpu.overwrites import check_overwrites
from mlc_llm.backends.cpu.team_code import compile_team
from mlc_llm.backends.cpu.workspace import IntoWorkspaces
from mlc_llm.backends.needless_calls import WithoutNeedlessCalls

BYTECODE_FILE = "vm.bin"
KERNELS_FILE = "kernels.o"
TEAM_FILE = "team.o"
NEEDLESS = ("s_tir.CompactBufferAllocation",)
"""Passes that take a third of the build and change no kernel of ours, which allocate what they
use."""


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
) -> Compiled:
    """Writes the files into `folder`, which exists. without: passes of TVM that are left out."""
    check_overwrites(module)
    workspaces = IntoWorkspaces()
    with tvm.transform.PassContext(disabled_pass=list(without)):
        executable = relax.build(module, target=target, relax_pipeline=pipeline(workspaces))
    executable.mod.write_to_file(str(folder / BYTECODE_FILE))
    (kernels,) = (m for m in executable.mod.imports if m.kind == "llvm")
    kernels.write_to_file(str(folder / KERNELS_FILE))
    compile_team(target, folder / TEAM_FILE)
    files = BYTECODE_FILE, KERNELS_FILE, TEAM_FILE
    return Compiled(files, str(target), requires, workspaces.found)
