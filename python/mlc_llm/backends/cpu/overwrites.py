"""Looks for tensors that are read after a later kernel wrote over them.

Kernels change tensors in place, and layers share scratch tensors (`scratch.py`). A wrong order of
calls would give wrong numbers without an error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import tvm
from tvm import relax
from tvm.relax import Expr, Var

_IN_PLACE, _EMPTY, _RESHAPE = (
    tvm.ir.Op.get(f"relax.{name}")
    for name in ("call_tir_inplace", "builtin.alloc_tensor", "reshape")
)
_IN_PART = ("head_norm",)
"""Beginnings of the names of kernels that change columns which nobody else reads: of queries, keys
and values beside a gate, for example. What is read later may be the rest."""


def check_overwrites(module: tvm.IRModule) -> None:
    """Raises AssertionError with the function and the variable that are wrong."""
    for name, function in module.functions.items():
        if isinstance(function, relax.Function):
            _Memory(name.name_hint).follow(function)


class _Memory:
    """What was written where, binding by binding. A tensor is the variable that it had first; its
    version counts how often it was changed."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._newest: Counter[Var] = Counter()
        self._known: dict[Var, tuple[Var, int]] = {}
        """Variable -> the tensor and the version of it that it stands for."""
        self._parts: dict[Var, list[Var | None]] = {}
        """Of a tuple that a kernel returns: the tensors that it changed in place."""
        self._rewritable: set[Var] = set()
        """Scratch, and arguments of the function: what a kernel writes there over and over."""
        self._arguments: set[Var] = set()
        """An argument's name always means the memory as it is: layers that share the pages of an
        earlier one read by that name what it appended."""

    def follow(self, function: relax.Function) -> None:
        self._arguments.update(function.params)
        self._rewritable.update(function.params)
        for block in function.body.blocks:
            for binding in block.bindings:
                self._bind(binding.var, binding.value)
        self._read(function.body.body)

    def _bind(self, var: Var, value: Expr) -> None:
        if isinstance(value, relax.Call) and value.op == _IN_PLACE:
            return self._change(var, value)
        self._read(value)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._arguments:
            self._arguments.add(var)
        elif isinstance(value, relax.TupleGetItem):
            root = self._parts.get(value.tuple_value, {value.index: None})[value.index]
            if root is not None:
                self._known[var] = root, self._newest[root]
        elif isinstance(value, relax.Call) and value.op == _EMPTY:
            self._rewritable.add(var)
        elif isinstance(value, Var) or (isinstance(value, relax.Call) and value.op == _RESHAPE):
            self._known[var] = self._tensor(value if isinstance(value, Var) else value.args[0])
        return None

    def _change(self, var: Var, call: relax.Call) -> None:
        """A call of a kernel that writes to some of its arguments."""
        given, written = call.args[1].fields, [int(i) for i in call.attrs.inplace_indices]
        for i, one in enumerate(given):
            if not (i in written and one in self._rewritable):  # as it is now, not as it was
                self._read(one)
        roots = [self._tensor(given[i])[0] if i >= 0 else None for i in written]
        for root in roots:
            if root is not None and not call.args[0].name_hint.startswith(_IN_PART):
                self._newest[root] += 1
        if len(roots) > 1:
            self._parts[var] = roots
        elif roots[0] is not None:
            self._known[var] = roots[0], self._newest[roots[0]]

    def _read(self, value: Expr) -> None:
        for var in _variables(value):
            root, version = self._tensor(var)
            assert var in self._arguments or version == self._newest[root], (
                f"{self._function}: {var.name} is read after {root.name} was overwritten"
            )

    def _tensor(self, var: Var) -> tuple[Var, int]:
        return self._known.get(var, (var, 0))


def _variables(value: Expr) -> Iterator[Var]:
    if isinstance(value, Var):
        yield value
    elif isinstance(value, relax.Tuple):
        for field in value.fields:
            yield from _variables(field)
    elif isinstance(value, relax.TupleGetItem):
        yield from _variables(value.tuple_value)
    elif isinstance(value, relax.Call):
        for one in value.args:
            yield from _variables(one)
