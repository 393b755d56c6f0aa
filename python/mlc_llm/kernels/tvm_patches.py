"""The one place where this package replaces code of TVM, so that kernels are read faster.

Reading the kernels of a model takes as long as compiling them. What is replaced here, in
apache-tvm 0.27.0.post1, gives the same kernels in a twentieth of the time:

`Parser.eval_expr`
    The value of an expression. TVM compiles and runs a Python program for each part of it, and
    copies all names that it knows; `evaluate` does not.
`eval_assign`
    The names that an assignment binds, for which TVM runs a Python program too; `assigned` does
    that for several targets only.
`ScriptMacro._find_parser_def`
    It looks among its callers for the parser that expands an inline function (`T.inline`), and asks
    for the source text of every caller. `current_parser` knows it from `evaluate`.
`Source.as_ast`
    The syntax tree of a text. TVM makes it again for each call of an inline function; `tree` makes
    it once for most.
`Parser.with_source_span` and `annotate_current_source_span`
    They note in a kernel where each part of it was written; `nowhere` and `as_it_is` do not. An
    error in a kernel's text still names its place.
`inspect`, as `prim_func` uses it
    `prim_func` asks for the source text of every caller, twice, and looks at one of them;
    `inspection` reads that one.

None is needed any more when a newer TVM reads no source text for callers, keeps its trees, and
compiles no names; tests say so. Where one of them has gone, none is replaced, since some need
others, and a warning says so: kernels are the same then, and are read more slowly.
"""

from __future__ import annotations

import inspect
import linecache
import logging
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache, lru_cache
from types import FrameType
from typing import Any, NamedTuple

import tvm
from tvm.script.parser.core import doc, evaluator, parser
from tvm.script.parser.core.diagnostics import Source
from tvm.script.parser.core.parser import Parser, ScriptMacro
from tvm.tirx.script.parser import entry

from mlc_llm.kernels.expressions import current_parser, evaluate

TEXTS = 1024
"""Syntax trees that are kept. All kernels of a model have some hundred texts."""

logger = logging.getLogger(__name__)


def assigned(parser: Parser, target: doc.expr, source: Any) -> dict[str, Any]:
    """What an assignment of a value binds, by name."""
    if isinstance(target, doc.Name):
        return {target.id: source}
    assert TVM_CODE["assigned"] is not None
    found: dict[str, Any] = TVM_CODE["assigned"](parser, target, source)
    return found


def tree(source: Source) -> doc.AST:
    """The syntax tree of a source, kept if it has one function: the parser changes those that are
    defined within another. Elsewhere it only gives slices a step of 1, which may be done again."""
    text = source.source
    return _tree(text) if text.count("def ") == 1 else doc.parse(text)


@lru_cache(TEXTS)
def _tree(text: str) -> doc.AST:
    return doc.parse(text)


_NOTHING = nullcontext()


def nowhere(_parser: Parser, _node: doc.AST) -> AbstractContextManager[None]:
    """Notes no place."""
    return _NOTHING


def as_it_is(_parser: Parser, value: Any) -> Any:
    """The value, with no place noted."""
    return value


class Caller(NamedTuple):
    """A caller, as far as `prim_func` asks for it."""

    frame: FrameType

    @property
    def lineno(self) -> int:
        """The number of the line where it calls."""
        return self.frame.f_lineno

    @property
    def code_context(self) -> list[str]:
        """That line."""
        return [linecache.getline(self.frame.f_code.co_filename, self.lineno)]


class _Inspection:
    """The module `inspect`, but for `stack`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(inspect, name)

    @staticmethod
    def stack() -> list[Caller]:
        """All callers, the nearest one first."""
        return [Caller(frame) for frame in _frames(sys._getframe(1))]


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


inspection = _Inspection()

PLACES = {
    "evaluate": (Parser, "eval_expr", evaluate),
    "assigned": (parser, "eval_assign", assigned),
    "current_parser": (ScriptMacro, "_find_parser_def", current_parser),
    "tree": (Source, "as_ast", tree),
    "nowhere": (Parser, "with_source_span", nowhere),
    "as_it_is": (Parser, "annotate_current_source_span", as_it_is),
    "inspection": (entry, "inspect", inspection),
}
"""Where, which attribute, and what replaces it."""
TVM_CODE = {name: getattr(place, at, None) for name, (place, at, _) in PLACES.items()}
"""The same as TVM wrote it; None where this version has none."""


@cache
def apply() -> None:
    """Replaces them, once in a process."""
    used = [(owner, attribute) for owner, attribute, _ in PLACES.values()]
    used += [(evaluator, "_eval_op"), (ScriptMacro, "parser_object_name")]
    missing = [f"{owner.__name__}.{name}" for owner, name in used if not hasattr(owner, name)]
    if missing:
        logger.warning(
            "apache-tvm %s has no %s: kernels are read more slowly; %s needs a change",
            tvm.__version__, ", ".join(missing), __name__,
        )  # fmt: skip
        return
    for owner, attribute, mine in PLACES.values():
        setattr(owner, attribute, mine)
