"""Machine code of a team of threads, from `thread_team.ll`.

That file is in LLVM's own language. TVM's has no words for what it does, and a user's machine has
no compiler for anything else.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import tvm
import tvm_ffi
from tvm.target import codegen

SOURCE = Path(__file__).with_name("thread_team.ll")
_PAUSES = {"x86_64": ("llvm.x86.sse2.pause", ""), "aarch64": ("llvm.aarch64.hint", "i32 1")}
"""What tells a processor that a thread waits: a function of LLVM, its argument."""

_CLOCKS = {False: (1, 3), True: (6, 16)}
"""CLOCK_MONOTONIC and CLOCK_THREAD_CPUTIME_ID; True: of Apple's systems."""


def compile_team(target: tvm.target.Target, path: Path) -> None:
    """Writes an object file that is linked together with kernels for the same target."""
    triple = str(target.attrs.get("mtriple") or codegen.llvm_get_system_triple())
    compile_text(source_for(triple), target, path)


def source_for(triple: str) -> str:
    """The text for an LLVM triple."""
    family, text = triple.split("-", maxsplit=1)[0], SOURCE.read_text(encoding="utf-8")
    time, core = _CLOCKS[any(name in triple for name in ("darwin", "macos"))]
    text = text.replace("{clock}", str(time)).replace("{core_clock}", str(core))
    if family not in _PAUSES:
        return text.replace("{declare_pause}", "").replace("{pause}", "")
    name, argument = _PAUSES[family]
    declared = f"declare void @{name}({argument.split(' ')[0]})"
    called = f"call void @{name}({argument})"
    return text.replace("{declare_pause}", declared).replace("{pause}", called)


def compile_text(text: str, target: tvm.target.Target, path: Path) -> None:
    """LLVM's language to an object file."""
    shown = str(target).replace("\\", "\\5C").replace('"', "\\22")
    flags = f'!llvm.module.flags = !{{!0}}\n!0 = !{{i32 4, !"tvm_target", !"{shown}"}}\n'
    load = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, SOURCE.name)
        source.write_text(f"{text}\n{flags}", encoding="utf-8")
        load(str(source), "ll").write_to_file(str(path))
