"""From a Relax module to the files of a library for a GPU."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import tvm
from tvm import relax

from mlc_llm.backends.base import Compiled
from mlc_llm.backends.cpu.codegen import BYTECODE_FILE
from mlc_llm.backends.cuda.build import only_source, source_of, target_of
from mlc_llm.backends.cuda.device_bin import compiled
from mlc_llm.backends.cuda.early_launch import early, has_early_launch
from mlc_llm.backends.cuda.nvrtc import compile_cubin
from mlc_llm.backends.cuda.workspace import ALLOCATE
from mlc_llm.backends.needless_calls import WithoutNeedlessCalls

DEVICE_FILE = "device.bin"
KERNELS_FILE = "kernels.o"
"""What the host runs to launch them."""
_ALLOCATE = tvm.ir.Op.get("relax.memory.alloc_storage")
_VM_ALLOCATE = tvm.ir.Op.get("relax.vm.alloc_storage")
_LEAST_BITS, _MOST_BITS = 12, 40


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
            in_few_sizes(),
            change.LowerAllocTensor(),
            change.CanonicalizeBindings(),
            change.LowerRuntimeBuiltin(),
            with_own_storage(),
            change.ComputePrimValue(),
            change.VMShapeLower(),
            WithoutNeedlessCalls(),
            change.AttachGlobalSymbol(),
        ]
    )


def in_few_sizes() -> tvm.transform.Pass:
    """Storage whose size depends on a step is rounded up to a power of two. TVM keeps what a step
    has used for a step that needs as much, so it would keep storage for steps of every size."""

    return _rewriting(_Rounded, "in_few_sizes")


def with_own_storage() -> tvm.transform.Pass:
    """Storage comes from our own function (`workspace.py`)."""
    return _rewriting(_Asking, "with_own_storage")


def _rewriting(mutator: Callable[[tvm.IRModule], relax.PyExprMutator], name: str) -> Any:
    """A pass that changes the functions of Relax."""

    def change(module: tvm.IRModule, context: object) -> tvm.IRModule:
        functions = {
            name: mutator(module).visit_expr(one) if isinstance(one, relax.Function) else one
            for name, one in module.functions.items()
        }
        return tvm.IRModule(functions, attrs=module.attrs)

    return tvm.transform.module_pass(change, opt_level=0, name=name)


@relax.expr_functor.mutator
class _Rounded(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call.op != _ALLOCATE:
            return super().visit_call_(call)
        size, *rest = call.args
        sizes = [one if isinstance(one, tvm.tirx.IntImm) else _power(one) for one in size.values]
        return relax.Call(call.op, [relax.ShapeExpr(sizes), *rest], call.attrs)


@relax.expr_functor.mutator
class _Asking(relax.PyExprMutator):  # type: ignore[misc]
    def visit_call_(self, call: relax.Call) -> relax.Expr:
        if call.op != _VM_ALLOCATE:
            return super().visit_call_(call)
        arguments = relax.Tuple(list(call.args))
        return relax.op.call_builtin_with_ctx(ALLOCATE, arguments, ty_args=relax.ObjectType())


def _power(size: tvm.tirx.PrimExpr) -> tvm.tirx.PrimExpr:
    """The least power of two that is at least `size`, and at least 4,096, which TVM rounds to."""
    found = tvm.tirx.const(1 << _MOST_BITS, "int64")
    for bits in range(_MOST_BITS - 1, _LEAST_BITS - 1, -1):
        power = tvm.tirx.const(1 << bits, "int64")
        found = tvm.tirx.Select(size <= power, power, found)
    return found


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
    if has_early_launch(arch):
        source = early(source)
    kernels = compiled(source, compile_source or partial(compile_cubin, arch=arch))
    (folder / DEVICE_FILE).write_bytes(kernels.to_bytes())
    built.mod.write_to_file(str(folder / BYTECODE_FILE))
    host.write_to_file(str(folder / KERNELS_FILE))
    return Compiled((BYTECODE_FILE, KERNELS_FILE, DEVICE_FILE), str(target), (arch,))
