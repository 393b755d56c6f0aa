"""Leaves out calls of TVM's virtual machine that nobody needs: hundreds in a step of one token."""

from __future__ import annotations

import tvm
from tvm import relax

_CHECK, _MATCH = "vm.builtin.check_tensor_info", "vm.builtin.match_shape"
_STORE = 1
"""In a match: the number of axes, then what to do with each and a number for it. This one keeps a
size, which others may read."""


@relax.transform.function_pass(opt_level=0)
class WithoutNeedlessCalls:
    """To run behind `VMShapeLower`, which writes checks of all arguments.

    Left out are checks of weights and of other tensors that are given once: whoever loads or makes
    them has the library's list, and kernels check what they get. Also tuples that nobody reads,
    which kernels leave behind that change several arguments in place, and parts of a tuple that
    were taken out of it before.
    """

    def transform_function(
        self, function: relax.Function, module: tvm.IRModule, context: tvm.transform.PassContext
    ) -> relax.Function:
        body = _Slimming(function).body(function.body)
        return relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
        )


class _Slimming:
    """Of one function, binding by binding."""

    def __init__(self, function: relax.Function) -> None:
        inputs = (function.attrs or {}).get("num_input")
        weights = [] if inputs is None else list(function.params)[int(inputs) :]
        self._weights = set(weights)
        self._read = set(relax.analysis.used_vars(function.body))
        self._parts: dict[tuple[relax.Expr, int], relax.Var] = {}
        self._instead: dict[relax.Expr, relax.Var] = {}

    def body(self, body: relax.SeqExpr) -> relax.SeqExpr:
        blocks = [
            relax.BindingBlock(
                [
                    relax.VarBinding(one.var, self._renamed(one.value))
                    for one in block.bindings
                    if self._is_kept(one)
                ]
            )
            for block in body.blocks
        ]
        return relax.SeqExpr(blocks, self._renamed(body.body))

    def _is_kept(self, binding: relax.Binding) -> bool:
        var, value = binding.var, binding.value
        if isinstance(value, relax.Tuple):
            return var in self._read
        if isinstance(value, relax.TupleGetItem):
            first = self._parts.setdefault((value.tuple_value, value.index), var)
            if first is not var:
                self._instead[var] = first
            return first is var
        return not (_only_checks(value) and value.args[0] in self._weights)

    def _renamed(self, value: relax.Expr) -> relax.Expr:
        """The same with the variables that are left."""
        assert not isinstance(value, relax.If), "branches are not looked into"
        if isinstance(value, relax.Var):
            return self._instead.get(value, value)
        if isinstance(value, relax.Tuple):
            return relax.Tuple([self._renamed(one) for one in value.fields])
        if isinstance(value, relax.TupleGetItem):
            return relax.TupleGetItem(self._renamed(value.tuple_value), value.index)
        if not isinstance(value, relax.Call):
            return value
        args = [self._renamed(one) for one in value.args]
        return relax.Call(value.op, args, value.attrs, value.ty_args, value.span)


def _only_checks(value: relax.Expr) -> bool:
    if not (isinstance(value, relax.Call) and isinstance(value.op, relax.ExternFunc)):
        return False
    if value.op.global_symbol == _MATCH:
        axes = int(value.args[2].value)
        return all(int(value.args[3 + 2 * i].value) != _STORE for i in range(axes))
    return bool(value.op.global_symbol == _CHECK)
