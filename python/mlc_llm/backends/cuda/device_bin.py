"""`device.bin`: the kernels of a library for a GPU, in the form that TVM's runtime reads.

It is what TVM calls the bytes of a module of kind "cuda": a format, a table of functions with the
types of their arguments and how they are launched, and code. TVM writes it with CUDA source as
the code; here machine code takes the source's place. Numbers are unsigned, 64 bits, little-endian;
a text is its length and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from mlc_llm.errors import CompileError

KIND = b"cuda"
SOURCE, MACHINE_CODE = b"cuda", b"cubin"
"""Formats of the code."""


@dataclass
class DeviceModule:
    """The parts of a module for a GPU."""

    format: bytes
    table: bytes
    """The functions, as TVM wrote them."""
    names: tuple[str, ...]
    """The functions' names."""
    code: bytes

    def to_bytes(self) -> bytes:
        """What `ffi.Module.load_from_bytes.cuda` takes."""
        return _text(self.format) + self.table + _text(self.code)


def compiled(source: DeviceModule, compile_source: Callable[[str], bytes]) -> DeviceModule:
    """The same module with machine code."""
    code = compile_source(source.code.decode())
    return DeviceModule(MACHINE_CODE, source.table, source.names, code)


def device_module(data: bytes) -> DeviceModule:
    """Reads what `to_bytes` wrote. Raises CompileError if it is something else."""
    try:
        reader = _Reader(data)
        found = reader.text()
        start = reader.at
        names = tuple(one.name for one in reader.functions())
        table = data[start : reader.at]
        code = reader.text()
    except struct.error as error:
        raise CompileError("TVM's module for the GPU ends too early") from error
    if reader.at != len(data):
        raise CompileError("TVM's module for the GPU has more in it than this version knows")
    return DeviceModule(found, table, names, code)


def relaunched(
    module: DeviceModule, change: Callable[[tuple[bytes, ...]], tuple[bytes, ...]]
) -> DeviceModule:
    """The same module with other launch parameters. change: makes them of those of a function."""
    functions = _Reader(module.table).functions()
    table = _number(len(functions)) + b"".join(
        one._replace(launch=change(one.launch)).to_bytes() for one in functions
    )
    return DeviceModule(module.format, table, module.names, module.code)


class _Function(NamedTuple):
    """An entry of the table: the bytes before its launch parameters, these, and those behind."""

    name: str
    head: bytes
    launch: tuple[bytes, ...]
    tail: bytes

    def to_bytes(self) -> bytes:
        launch = _number(len(self.launch)) + b"".join(map(_text, self.launch))
        return self.head + launch + self.tail


class Packed(NamedTuple):
    """A module that another one imports."""

    kind: bytes
    data: bytes


def imported_modules(data: bytes) -> list[Packed]:
    """The modules in what TVM's `runtime.ModulePackImportsToTensor` returns: its size, two lists of
    numbers (which module imports which), then kind and bytes of each; "_lib" stands for the
    importing module itself and has no bytes."""
    reader = _Reader(data)
    reader.number()
    for _ in range(2):
        reader.skip(8 * reader.number())
    found = []
    while reader.at < len(data):
        kind = reader.text()
        if kind != b"_lib":
            found.append(Packed(kind, reader.text()))
    return found


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self.at = 0

    def number(self) -> int:
        (value,) = struct.unpack_from("<Q", self._data, self.at)
        self.at += 8
        return int(value)

    def skip(self, count: int) -> None:
        self.at += count
        if self.at > len(self._data):
            raise struct.error("too short")

    def text(self) -> bytes:
        start = self.number()
        begin = self.at
        self.skip(start)
        return self._data[begin : self.at]

    def functions(self) -> tuple[_Function, ...]:
        """The table of functions: each has its name twice, the types of its arguments (4 bytes
        each), its launch parameters by name, and what its arguments are for (4 bytes)."""
        return tuple(self._function() for _ in range(self.number()))

    def _function(self) -> _Function:
        start = self.at
        self.text()
        name = self.text().decode()
        self.skip(4 * self.number())
        head = self._data[start : self.at]
        launch = tuple(self.text() for _ in range(self.number()))
        start = self.at
        self.skip(4 * self.number())
        return _Function(name, head, launch, self._data[start : self.at])


def _number(value: int) -> bytes:
    return struct.pack("<Q", value)


def _text(data: bytes) -> bytes:
    return _number(len(data)) + data
