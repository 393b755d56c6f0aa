"""The one place where this package replaces code of TVM.

`ScriptMacro._find_parser_def`, in apache-tvm 0.27.0.post1:

* What: it looks among its callers for the parser that expands an inline function (`T.inline`).
  `find_parser` finds the same parser, from the nearest caller on.
* Why: TVM asks for the source text of every caller first (`inspect.getouterframes`). That took more
  than half of the time in which our kernels are read.
* No longer needed: when `TVM_SEARCH` of a newer TVM reads no source text. A test says so.
* Other versions: where the method has gone, nothing is replaced, and a warning says so. Kernels are
  the same then, and are read more slowly.
"""

from __future__ import annotations

import inspect
import logging
from functools import cache

import tvm
from tvm.script.parser.core.parser import Parser, ScriptMacro

METHOD = "_find_parser_def"
TVM_SEARCH = getattr(ScriptMacro, METHOD, None)
"""The method as TVM wrote it; None where this version has none."""

logger = logging.getLogger(__name__)


def find_parser(_macro: ScriptMacro) -> Parser:
    """The parser that expands an inline function. Raises RuntimeError outside of one."""
    frame = inspect.currentframe()
    while frame is not None:
        parser = frame.f_globals.get(ScriptMacro.parser_object_name)
        if parser is not None:
            return parser
        frame = frame.f_back
    raise RuntimeError("an inline function was called where nothing is parsed")


@cache
def apply() -> None:
    """Replaces the search, once in a process."""
    if TVM_SEARCH is None or not hasattr(ScriptMacro, "parser_object_name"):
        logger.warning(
            "apache-tvm %s has no ScriptMacro.%s: kernels are read more slowly; %s needs a change",
            tvm.__version__, METHOD, __name__,
        )  # fmt: skip
        return
    setattr(ScriptMacro, METHOD, find_parser)
