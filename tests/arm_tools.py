"""Kernels for 64-bit Arm: compiled for it anywhere, run where an emulator and a linker are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import tvm
import tvm_ffi.libinfo

from mlc_llm.backends.cpu.isa import DOTPROD, I8MM, Isa
from mlc_llm.backends.cpu.target import target_for

TRIPLE = "aarch64-linux-gnu"
ARM = (I8MM, DOTPROD)
PROCESSORS = {I8MM.name: "max", DOTPROD.name: "neoverse-n1"}
"""The emulator's processors; the second has no I8MM, and stops at such an instruction."""
LINKER, EMULATOR = f"{TRIPLE}-gcc", "qemu-aarch64"
RUNNER = Path(__file__).with_name("run_kernel.c")
AARCH64_ELF = b"\x7fELF\x02\x01", (183).to_bytes(2, "little")
"""64 bits, little-endian; and the machine at byte 18."""


def missing_programs() -> str:
    """Programs that running needs and that are not installed; empty when all are there."""
    return ", ".join(name for name in (EMULATOR, LINKER) if shutil.which(name) is None)


def cross_compile(func: tvm.tirx.PrimFunc, isa: Isa) -> Any:
    """The kernel `k` as TVM's LLVM module."""
    return tvm.tirx.build(func.with_attr("global_symbol", "k"), target=target_for(isa, TRIPLE))


def instructions(module: Any) -> Counter[str]:
    """How often each instruction stands in a module's assembly."""
    return Counter(re.findall(r"^\t([a-z]\w*)\b", module.inspect_source("asm"), re.MULTILINE))


def is_arm_object(path: Path) -> bool:
    """Whether a file is an object of 64-bit Arm code."""
    data = path.read_bytes()
    return data.startswith(AARCH64_ELF[0]) and data[18:20] == AARCH64_ELF[1]


def emulated(func: tvm.tirx.PrimFunc, isa: Isa) -> Callable[..., None]:
    """The kernel on NumPy arrays, which it changes in place, run by the emulator."""
    # Removed when the process ends, as the kernel may be called until then.
    folder = tempfile.TemporaryDirectory(prefix="arm-kernel-")
    program = Path(folder.name) / "program"
    _link(cross_compile(func, isa), program)

    def call(*arrays: npt.NDArray[Any]) -> None:
        given, made = Path(folder.name) / "given", Path(folder.name) / "made"
        given.write_bytes(b"".join(map(_with_header, arrays)))
        command = [EMULATOR, "-cpu", PROCESSORS[isa.name], str(program), str(given), str(made)]
        done = _run(command, folder.name)
        assert done.returncode == 0, f"{done.returncode}: {done.stderr}"
        data = made.read_bytes()
        assert len(data) == sum(array.nbytes for array in arrays)
        for array in arrays:
            array[...] = np.frombuffer(data[: array.nbytes], array.dtype).reshape(array.shape)
            data = data[array.nbytes :]

    return call


def _link(module: Any, program: Path) -> None:
    """Statically, so that no Arm system is needed to run it."""
    code = program.with_suffix(".o")
    module.write_to_file(str(code))
    include = Path(tvm_ffi.libinfo.find_include_path())
    folders = [f"-I{include}", f"-I{tvm_ffi.libinfo.find_dlpack_include_path()}"]
    command = [LINKER, "-static", "-O1", *folders, "-o", program, RUNNER, code, "-lm", "-pthread"]
    done = _run(list(map(os.fspath, command)), program.parent)
    assert done.returncode == 0, done.stderr


def _run(command: list[str], folder: str | Path) -> subprocess.CompletedProcess[str]:
    """In `folder`, where a crash may leave its core."""
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True)


def _with_header(array: npt.NDArray[Any]) -> bytes:
    code = {"i": 0, "u": 1, "f": 2}[array.dtype.kind]
    head = np.array([code, 8 * array.dtype.itemsize, 1, array.ndim, 0], np.int32)
    shape = np.array(array.shape, np.int64)
    return head.tobytes() + shape.tobytes() + np.ascontiguousarray(array).tobytes()
