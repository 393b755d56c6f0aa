"""CUDA source as a library for the CPU, whose functions take the arguments of launches."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

EMULATOR = Path(__file__).parent / "emulator"
COMPILER = shutil.which("g++")
_SIGNATURE = re.compile(r'extern "C" __global__ void [^{;]*?(\w+)\(([^)]*)\) \{')
_INSTRUCTION = re.compile(
    r"^__forceinline__ __device__ void tvm_builtin_ptx_\w+\([^)]*\) \{.*?^\}\n", re.M | re.S
)
"""A function of TVM for an instruction; the emulator has its own."""
_ASSEMBLY = re.compile(r'asm volatile\("griddepcontrol\.\w+;"[^;]*\);')
"""What concerns other kernels: here they run one after the other."""
_DYNAMIC = re.compile(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];")
"""Shared memory whose size the launch says."""


def compile_emulated(source: str, library: Path) -> None:
    """A library with `emulated_NAME` for the kernel."""
    assert COMPILER is not None
    code = library.with_suffix(".cpp")
    code.write_text(emulated_source(source), encoding="utf-8")
    options = [
        "-std=c++20",
        "-Og",  # half the time of -O1, and as quick a program
        "-mf16c",  # else each half is converted by a function
        "-w",
        "-fpermissive",
        "-fno-strict-aliasing",
        "-shared",
        "-fPIC",
    ]
    command = [COMPILER, *options, f"-I{EMULATOR}", str(code), "-o", str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def emulated_source(source: str) -> str:
    """CUDA source as C++, with functions that take the arguments of launches."""
    own = _DYNAMIC.sub(r"auto *\2 = (\1 *)emulator::shared;", _INSTRUCTION.sub("", source))
    own = _ASSEMBLY.sub("", own)
    starts = []
    for name, parameters in _SIGNATURE.findall(own):
        types = [re.sub(r"__restrict__|\w+$", "", one.strip()) for one in parameters.split(",")]
        given = ", ".join(f"*({kind}*)arguments[{i}]" for i, kind in enumerate(types))
        head = f"int emulated_{name}(const unsigned *grid, const unsigned *block, void **arguments)"
        count = f'extern "C" const unsigned arguments_{name} = {len(types)};'
        call = f"emulator::run(grid, block, [=] {{ {name}({given}); }})"
        starts.append(f'extern "C" {head} {{ return {call}; }}\n{count}\n')
    assert starts, "no kernel in the source"
    return own + "\n" + "".join(starts)
