"""From a Relax module to machine code for a CPU: VM bytecode and one object file."""

from __future__ import annotations

from pathlib import Path

import tvm
from tvm import relax

from mlc_llm.backends.base import Compiled

BYTECODE_FILE = "vm.bin"
KERNELS_FILE = "kernels.o"


def compile_module(
    module: tvm.IRModule, target: tvm.target.Target, folder: Path, requires: tuple[str, ...]
) -> Compiled:
    """Writes both files into `folder`, which exists."""
    executable = relax.build(module, target=target)
    executable.mod.write_to_file(str(folder / BYTECODE_FILE))
    (kernels,) = (m for m in executable.mod.imports if m.kind == "llvm")
    kernels.write_to_file(str(folder / KERNELS_FILE))
    return Compiled((BYTECODE_FILE, KERNELS_FILE), str(target), requires)
