"""The one place where this package replaces code of TVM, so that kernels are read faster.

Reading the kernels of a model takes as long as compiling them. What is replaced here, in
apache-tvm 0.27.0.post1, gives the same kernels in a third of the time:

`ScriptMacro._find_parser_def`
    It looks among its callers for the parser that expands an inline function (`T.inline`). TVM asks
    for the source text of every caller first (`inspect.getouterframes`); `find_parser` does not.
`Source.as_ast`
    The syntax tree of a text. TVM makes it again for each call of an inline function; `tree` makes
    it once for most.
`evaluator._eval_expr`
    The value of an expression whose parts have their values already: mostly a name, a constant, an
    attribute, a call or an element. TVM compiles and runs a Python program for each; `value` looks
    them up, and leaves all others to TVM.

None is needed any more when a newer TVM reads no source text for callers, keeps its trees, and
compiles no names; tests say so. Where one of them has gone, nothing is replaced, and a warning says
so: kernels are the same then, and are read more slowly.
"""

from __future__ import annotations

import builtins
import inspect
import logging
from functools import cache, lru_cache
from typing import Any

import tvm
from tvm.script.parser.core import doc, evaluator
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.parser import Parser, ScriptMacro

PLACES = {
    "find_parser": (ScriptMacro, "_find_parser_def"),
    "tree": (Source, "as_ast"),
    "value": (evaluator, "_eval_expr"),
}
"""What replaces -> where, and which attribute."""
TVM_CODE = {name: getattr(owner, attribute, None) for name, (owner, attribute) in PLACES.items()}
"""The same as TVM wrote it; None where this version has none."""
TEXTS = 1024
"""Syntax trees that are kept. All kernels of a model have some hundred texts."""

logger = logging.getLogger(__name__)


def find_parser(_macro: ScriptMacro) -> Parser:
    """The parser that expands an inline function. Raises RuntimeError outside of one."""
    frame = inspect.currentframe()
    while frame is not None:
        # Expressions see the parser among their names: global ones for TVM's programs.
        names = frame.f_locals["known"] if frame.f_code is value.__code__ else frame.f_globals
        parser = names.get(ScriptMacro.parser_object_name)
        if parser is not None:
            return parser
        frame = frame.f_back
    raise RuntimeError("an inline function was called where nothing is parsed")


def tree(source: Source) -> doc.AST:
    """The syntax tree of a source, kept if it has one function: the parser changes those that are
    defined within another. Elsewhere it only gives slices a step of 1, which may be done again."""
    text = source.source
    return _tree(text) if text.count("def ") == 1 else doc.parse(text)


@lru_cache(TEXTS)
def _tree(text: str) -> doc.AST:
    return doc.parse(text)


def value(node: doc.AST, names: dict[str, Any] | None) -> Any:
    """The value of an expression. Raises what Python raises for it."""
    known = {} if names is None else names
    if isinstance(node, doc.Call) and _are_plain(node.func, *node.args):
        if all(isinstance(one.value, _PLAIN) for one in node.keywords):
            pairs = [(one.arg, _plain(one.value, known)) for one in node.keywords]
            if all(name is not None for name, _ in pairs):
                arguments = [_plain(one, known) for one in node.args]
                return _plain(node.func, known)(*arguments, **dict(pairs))
    elif isinstance(node, doc.Attribute) and _are_plain(node.value):
        return getattr(_plain(node.value, known), node.attr)
    elif isinstance(node, doc.Subscript) and _are_plain(node.value, node.slice):
        return _plain(node.value, known)[_plain(node.slice, known)]
    elif _are_plain(node):
        return _plain(node, known)
    assert TVM_CODE["value"] is not None
    return TVM_CODE["value"](node, names)


_PLAIN = (doc.Name, doc.Constant)


def _are_plain(*nodes: doc.AST) -> bool:
    return all(isinstance(node, _PLAIN) for node in nodes)


def _plain(node: doc.AST, names: dict[str, Any]) -> Any:
    """Raises NameError."""
    if isinstance(node, doc.Constant):
        return node.value
    if node.id in names:
        return names[node.id]
    try:
        return getattr(builtins, node.id)
    except AttributeError:
        raise NameError(f"name {node.id!r} is not defined") from None


@cache
def apply() -> None:
    """Replaces them, once in a process."""
    for name, (owner, attribute) in PLACES.items():
        if TVM_CODE[name] is None or not hasattr(ScriptMacro, "parser_object_name"):
            logger.warning(
                "apache-tvm %s has no %s.%s: kernels are read more slowly; %s needs a change",
                tvm.__version__, owner.__name__, attribute, __name__,
            )  # fmt: skip
        else:
            setattr(owner, attribute, globals()[name])
