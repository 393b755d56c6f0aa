"""An engine as a table of functions. Any language with TVM's FFI can call them by name."""

from __future__ import annotations

import re
from collections.abc import Iterable

import tvm_ffi

from mlc_llm import errors


def function_table(owner: object, names: Iterable[str]) -> tvm_ffi.Map:
    """The named methods of `owner` as a map from name to FFI function.

    Strings, numbers, None, functions and arrays cross the FFI as such. Our own Python objects
    (`Request`, `RequestStreamOutput`) cross unchanged, as opaque objects. Errors of the tree in
    `errors` keep their class for a caller in Python.
    """
    return tvm_ffi.convert({name: getattr(owner, name) for name in names})


class _FieldOfMessage(errors.InvalidField):
    """Makes an `InvalidField` of its message. Only the message crosses the FFI."""

    def __new__(cls, message: str) -> errors.InvalidField:  # type: ignore[misc]
        made = errors.InvalidField.__new__(errors.InvalidField)
        errors.UserError.__init__(made, message)
        made.field, _, rest = message.partition(" = ")
        made.value, _, made.allowed = rest.partition(" is not allowed: ")
        return made


class _ContextOfMessage(errors.ContextLengthExceeded):
    """Makes a `ContextLengthExceeded` of its message."""

    def __new__(cls, message: str) -> errors.ContextLengthExceeded:  # type: ignore[misc]
        made = errors.ContextLengthExceeded.__new__(errors.ContextLengthExceeded)
        errors.UserError.__init__(made, message)
        made.limit, made.prompt_tokens = (int(n) for n in re.findall(r"[0-9]+", message)[:2])
        made.at_least = "at least" in message
        return made


def _register_errors() -> None:
    """Register our errors. The FFI makes a RuntimeError of an exception that it does not know."""
    for cls in (
        errors.MLCError,
        errors.UserError,
        errors.ModelNotFound,
        errors.ModelFileError,
        errors.UnsupportedModel,
        errors.UnusableDevice,
        errors.CacheError,
        errors.CompileError,
        errors.DeviceFailed,
        errors.RequestError,
        errors.EngineDead,
        KeyboardInterrupt,
        MemoryError,
    ):
        tvm_ffi.register_error(cls.__name__, cls)
    tvm_ffi.register_error("InvalidField", errors.InvalidField)
    tvm_ffi.register_error("InvalidField", errors.MissingKey)
    tvm_ffi.register_error("ContextLengthExceeded", errors.ContextLengthExceeded)
    # The class that was registered last for a name is called with the message.
    tvm_ffi.register_error("InvalidField", _FieldOfMessage)
    tvm_ffi.register_error("ContextLengthExceeded", _ContextOfMessage)


_register_errors()
