"""Loads a model library: VM bytecode plus an object file, linked in memory without a compiler."""

from __future__ import annotations

import hashlib
import os
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import tvm_ffi
import tvm_ffi_orcjit
from tvm_ffi.libinfo import load_lib_ctypes

from mlc_llm.model_lib import BYTECODE_FILE, KERNELS_FILE, METADATA_FILE, Metadata
from mlc_llm.support import amx

_CPU = (1, 0)
"""Device type (as in DLPack) and index."""
_NAIVE_ALLOCATOR = 1


class BrokenLibrary(Exception):
    """The folder does not hold an intact library of ours; building it again mends that."""


_NO_MEMORY = re.compile("failed to reserve|failed to map|Cannot allocate|bad_alloc")


@cache
def load_runtime() -> None:
    """Loads TVM's runtime library alone: it takes milliseconds, and the compiler half a second.

    Whoever imports `tvm` later finds it loaded.
    """
    package = find_spec("tvm")
    if package is None or not package.submodule_search_locations:
        raise ImportError("the package apache-tvm is not installed")
    folders = [Path(folder) / "lib" for folder in package.submodule_search_locations]
    load_lib_ctypes("tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders)


def read_metadata(folder: Path) -> Metadata:
    """Metadata of the library in `folder`, its files checked against the recorded hashes.

    Raises BrokenLibrary. Nothing is executed before the hashes agree.
    """
    try:
        metadata = Metadata.from_json((folder / METADATA_FILE).read_text(encoding="utf-8"))
        for name in (BYTECODE_FILE, KERNELS_FILE):
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != metadata.sha256[name]:
                raise BrokenLibrary(f"{folder / name} does not match its recorded hash")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenLibrary(f"{folder}: {error}") from error
    return metadata


class Executable:
    """The functions of a model library by name (see `model_lib.py`)."""

    def __init__(self, folder: Path) -> None:
        """Raises BrokenLibrary, MemoryError."""
        self.metadata = read_metadata(folder)
        if self.metadata.has_tiles and not amx.permitted():
            raise BrokenLibrary(f"{folder}: the system does not permit the tiles that it uses")
        load_runtime()
        try:
            load = tvm_ffi.get_global_func("ffi.Module.load_from_file.relax.VMExecutable")
            executable = load(str(folder / BYTECODE_FILE))
            # Plain functions, linked without the runtime of C++, for which it would ask a compiler.
            self._session = tvm_ffi_orcjit.ExecutionSession(orc_rt=None)
            kernels = self._session.load_module(str(folder / KERNELS_FILE), cxx=os.devnull)
            executable.import_module(kernels)
            # The default allocator would keep buffers for every size of step there ever was.
            self._vm = executable["vm_load_executable"]()
            self._vm["vm_initialization"](*_CPU, _NAIVE_ALLOCATOR)
        except Exception as error:  # what TVM raises has no base class of its own
            if isinstance(error, MemoryError) or _NO_MEMORY.search(str(error)):
                raise MemoryError(str(error)) from error  # another library needs no less
            raise BrokenLibrary(f"{folder}: {error}") from error

    def __getitem__(self, name: str) -> Any:
        return self._vm[name]
