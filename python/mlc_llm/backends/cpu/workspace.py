"""Lays what a step computes between its kernels into memory that the runtime gives.

TVM's virtual machine takes memory from the system in each step and gives it back: with 512 tokens
of a model of 1B, 16,000 pages that the system clears one by one, and that are looked up one by one.
The runtime's memory stays, and much of it lies in huge pages.
"""

from __future__ import annotations

from collections.abc import Iterator

import tvm
from tvm import relax, tirx
from tvm.sym import Analyzer

from mlc_llm.library.workspace_info import WorkspaceInfo

_STORAGE, _TENSOR = (
    tvm.ir.Op.get(f"relax.memory.{name}") for name in ("alloc_storage", "alloc_tensor")
)
TOKENS, ROWS = "m", "s"
"""Names of the sizes that a step's tokens bound (`library/signatures.py`). What has another size
stays the virtual machine's."""


@tvm.transform.module_pass(opt_level=0)
class IntoWorkspaces:
    """To run behind `StaticPlanBlockMemory`, whose storage holds all that is not returned.

    A function of tokens and weights takes more arguments behind these: a workspace, uint8 [bytes],
    for each storage. What does not fit into one is refused when the function is called.
    """

    def __init__(self) -> None:
        self.found: dict[str, tuple[WorkspaceInfo, ...]] = {}
        """Of each such function."""

    def transform_module(
        self, module: tvm.IRModule, context: tvm.transform.PassContext
    ) -> tvm.IRModule:
        for name, function in list(module.functions.items()):
            if isinstance(function, relax.Function) and _takes_weights(function):
                laid = _Laying(function)
                if not all(one.of_rows for one in laid.infos):
                    self.found[name.name_hint] = tuple(laid.infos)
                    module[name] = laid.function
        whole: tvm.IRModule = relax.transform.Normalize()(module)
        return whole


class _Laying:
    """Of one function."""

    def __init__(self, old: relax.Function) -> None:
        self.infos: list[WorkspaceInfo] = []
        self._workspaces: dict[relax.Var, relax.Var] = {}
        """In place of each storage."""
        blocks = [relax.BindingBlock(list(self._laid(one))) for one in old.body.blocks]
        self.function = relax.Function(
            [*old.params, *self._workspaces.values()],
            relax.SeqExpr(blocks, old.body.body),
            old.ret_ty,
            old.is_pure,
            old.attrs,
            old.span,
        )

    def _laid(self, block: relax.BindingBlock) -> Iterator[relax.Binding]:
        for binding in block.bindings:
            var, value = binding.var, binding.value
            info = _info(value) if _is_call(value, _STORAGE) else None
            if info is not None:
                self._workspaces[var] = self._workspace()
                self.infos.append(info)
            elif _is_call(value, _TENSOR) and value.args[0] in self._workspaces:
                yield relax.VarBinding(var, self._view(value))
            else:
                yield binding

    def _workspace(self) -> relax.Var:
        number = len(self._workspaces)
        # A size without a name makes `VMShapeLower` of TVM 0.27 crash.
        size = tirx.Var(f"bytes{number}", "int64")
        return relax.Var(f"workspace{number}", relax.TensorType([size], "uint8"))

    def _view(self, call: relax.Call) -> relax.Expr:
        storage, offset, shape, dtype = call.args[:4]
        assert int(offset.value) == 0, "TVM plans no tensors side by side in one storage"
        return relax.op.memory.view(self._workspaces[storage], shape, dtype, relax.prim_value(0))


def _takes_weights(function: relax.Function) -> bool:
    inputs = (function.attrs or {}).get("num_input")
    return inputs is not None and int(inputs) < len(function.params)


def _info(storage: relax.Call) -> WorkspaceInfo | None:
    """None if its size does not grow with tokens alone, or rows alone."""
    (size,) = storage.args[0].values
    counts = tirx.analysis.undefined_vars(size)
    if len(counts) != 1 or counts[0].name not in (TOKENS, ROWS):
        return None
    none, one = (_bytes(size, counts[0], count) for count in range(2))
    return WorkspaceInfo(one - none, counts[0].name == ROWS, none)


def _bytes(size: tirx.PrimExpr, name: tirx.Var, count: int) -> int:
    """The value of `size` for a count of that name."""
    sizes = Analyzer()
    sizes.bind(name, tirx.const(count, "int64"))
    return int(sizes.simplify(size))


def _is_call(value: relax.Expr, op: tvm.ir.Op) -> bool:
    return isinstance(value, relax.Call) and value.op == op
