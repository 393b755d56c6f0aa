"""An engine as a table of functions that any language with TVM's FFI can call by name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import tvm_ffi

from mlc_llm import errors


def function_table(owner: object, names: Iterable[str]) -> Any:
    """The named methods of `owner` as a map from name to FFI function.

    What crosses: strings, numbers, None, functions and arrays as such; our own Python objects
    (`Request`, `RequestStreamOutput`) unchanged, as opaque objects. Errors of the tree in `errors`
    keep their class for a caller in Python.
    """
    return tvm_ffi.convert({name: getattr(owner, name) for name in names})


class _CrossedField(errors.InvalidField):
    """An `InvalidField` that came through the FFI, which carries the message alone."""

    def __init__(self, message: str) -> None:
        errors.UserError.__init__(self, message)
        self.field = message.partition(" = ")[0]


class _CrossedContextLength(errors.ContextLengthExceeded):
    """A `ContextLengthExceeded` that came through the FFI."""

    def __init__(self, message: str) -> None:
        errors.UserError.__init__(self, message)


def _register_errors() -> None:
    """The FFI makes a plain RuntimeError of every exception that it was not told about."""
    for cls in (
        errors.MLCError,
        errors.UserError,
        errors.ModelNotFound,
        errors.ModelFileError,
        errors.UnsupportedModel,
        errors.CacheError,
        errors.CompileError,
        errors.RequestError,
        errors.EngineDead,
        KeyboardInterrupt,
    ):
        tvm_ffi.register_error(cls.__name__, cls)
    _register_as("InvalidField", errors.InvalidField, _CrossedField)
    _register_as("ContextLengthExceeded", errors.ContextLengthExceeded, _CrossedContextLength)


def _register_as(name: str, raised: type, caught: type) -> None:
    tvm_ffi.register_error(name, raised)
    tvm_ffi.register_error(name, caught)  # the later class is the one that is made of the name


_register_errors()
