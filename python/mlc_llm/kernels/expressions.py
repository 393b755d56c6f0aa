"""The values of expressions in kernels, as TVM's parser finds them.

TVM puts the value of each part of an expression under a new name into a new syntax tree, which it
compiles as a Python program. `evaluate` computes the parts one after the other. What it does not
know (a comprehension, a text with braces, a slice) it leaves to TVM.

Operators and conditions may mean something else on numbers of a kernel than on those of Python:
they go to TVM's `_eval_op` as well.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from threading import local
from typing import Any

from tvm import DataTypeCode
from tvm.ir import is_prim_expr
from tvm.script.parser.core import doc, evaluator
from tvm.script.parser.core.error import ParserError
from tvm.script.parser.core.parser import Parser, ScriptMacro
from tvm.tirx.op import if_then_else

TVM_EVALUATE = evaluator.eval_expr


class _Parsers(local):
    """Those that evaluate an expression in this thread; the innermost is the last one."""

    def __init__(self) -> None:
        self.active: list[Parser] = []


_parsers = _Parsers()


def evaluate(parser: Parser, node: doc.AST, more: dict[str, Any] | None = None) -> Any:
    """The value of an expression. more: names besides those that the parser knows. Raises
    ParserError for an unknown name, and TVM's error with the place for what else fails."""
    _parsers.active.append(parser)
    try:
        return _Expression(parser, more or {}).value(node)
    finally:
        _parsers.active.pop()


def current_parser(_macro: ScriptMacro) -> Parser:
    """The parser that expands an inline function. Raises RuntimeError outside of one."""
    if not _parsers.active:
        raise RuntimeError("an inline function was called where nothing is parsed")
    return _parsers.active[-1]


class _Expression:
    def __init__(self, parser: Parser, more: dict[str, Any]) -> None:
        self._parser = parser
        self._more = more
        self._names = parser.var_table.name2value

    def value(self, node: doc.AST) -> Any:
        kind = _KINDS.get(type(node))
        if kind is None:
            return self._by_tvm(node)
        try:
            return kind(self, node)
        except ParserError:
            raise
        except Exception as error:
            self._parser.report_error(node, error)
            raise

    def _by_tvm(self, node: doc.AST) -> Any:
        known = {**self._parser.var_table.get(), **self._more}
        known[ScriptMacro.parser_object_name] = self._parser
        return TVM_EVALUATE(self._parser, node, known)

    def name(self, node: doc.Name) -> Any:
        if node.id in self._more:
            return self._more[node.id]
        values = self._names.get(node.id)
        if values:
            return values[-1]
        try:
            return getattr(builtins, node.id)
        except AttributeError:
            raise ParserError(node, f"Undefined variable: {node.id}") from None

    def constant(self, node: doc.Constant) -> Any:
        return node.value

    def attribute(self, node: doc.Attribute) -> Any:
        return getattr(self.value(node.value), node.attr)

    def element(self, node: doc.Subscript) -> Any:
        if _is_sliced(node):
            return self._by_tvm(node)
        return self.value(node.value)[self.value(node.slice)]

    def call(self, node: doc.Call) -> Any:
        if _is_sliced(*node.args):
            return self._by_tvm(node)
        function = self.value(node.func)
        arguments = self._all(node.args)
        named: dict[str, Any] = {}
        for one in node.keywords:
            value = self.value(one.value)
            named.update(value if one.arg is None else {one.arg: value})
        return function(*arguments, **named)

    def sequence(self, node: doc.Tuple) -> Any:
        return tuple(self._all(node.elts))

    def enumeration(self, node: doc.List) -> Any:
        return self._all(node.elts)

    def _all(self, nodes: list[doc.AST]) -> list[Any]:
        found = []
        for one in nodes:
            if isinstance(one, doc.Starred):
                found.extend(self.value(one.value))
            else:
                found.append(self.value(one))
        return found

    def binary(self, node: doc.BinOp) -> Any:
        if _is_sliced(node.left, node.right):
            return self._by_tvm(node)
        return evaluator._eval_op(node.op, [self.value(node.left), self.value(node.right)])

    def unary(self, node: doc.UnaryOp) -> Any:
        if _is_sliced(node.operand):
            return self._by_tvm(node)
        return evaluator._eval_op(node.op, [self.value(node.operand)])

    def comparison(self, node: doc.Compare) -> Any:
        operands = (node.left, *node.comparators)
        if _is_sliced(*operands):
            return self._by_tvm(node)
        values = [self.value(one) for one in operands]
        result = None
        for i, op in enumerate(node.ops):
            found = evaluator._eval_op(op, values[i : i + 2])
            result = found if i == 0 else evaluator._eval_op(doc.And(), [result, found])
        return result

    def both_or_either(self, node: doc.BoolOp) -> Any:
        """As Python does, it leaves out what is behind a False of `and`, or a True of `or`."""
        value = self.value(node.values[0])
        for one in node.values[1:]:
            if isinstance(value, bool) and value is isinstance(node.op, doc.Or):
                return value
            value = evaluator._eval_op(node.op, [value, self.value(one)])
        return value

    def condition(self, node: doc.IfExp) -> Any:
        test = self.value(node.test)
        if isinstance(test, bool):
            return self.value(node.body if test else node.orelse)
        if is_prim_expr(test) and test.ty.matches_code(DataTypeCode.BOOL):
            return if_then_else(test, self.value(node.body), self.value(node.orelse))
        raise TypeError(f"Expected Python bool or TIR bool, but got {type(test)}")


def _is_sliced(*nodes: doc.AST) -> bool:
    """Whether one of them is several elements of something: what a step is if none is given
    depends on what they are for."""
    return any(isinstance(one, doc.Subscript) and _has_slice(one.slice) for one in nodes)


def _has_slice(node: doc.AST) -> bool:
    return isinstance(node, doc.Slice) or (
        isinstance(node, doc.Tuple) and any(isinstance(one, doc.Slice) for one in node.elts)
    )


_KINDS: dict[type, Callable[[_Expression, Any], Any]] = {
    doc.Name: _Expression.name,
    doc.Constant: _Expression.constant,
    doc.Attribute: _Expression.attribute,
    doc.Subscript: _Expression.element,
    doc.Call: _Expression.call,
    doc.Tuple: _Expression.sequence,
    doc.List: _Expression.enumeration,
    doc.BinOp: _Expression.binary,
    doc.UnaryOp: _Expression.unary,
    doc.Compare: _Expression.comparison,
    doc.BoolOp: _Expression.both_or_either,
    doc.IfExp: _Expression.condition,
}
