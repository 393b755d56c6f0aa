"""Kernels for AMX on processors without it: their instructions are calls of `tiles.c`."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import tvm
from tvm import tirx

from mlc_llm.backends.cpu.isa import AMX, VNNI_BF16, Isa
from mlc_llm.backends.cpu.target import missing_features

COMPILER = "gcc"
TILES = Path(__file__).with_name("tiles.c")
INSTRUCTION = re.compile(r'T\.call_llvm_intrin\("void", "llvm\.x86\.(\w*tile\w*|tdp\w+)"')
"""As TVM writes one down."""
VECTOR = re.compile(r"(\w+) = T\.(\w+x\d+)\(\)")
"""A name for a vector, as TVM writes it and does not read it where there is no such type of `T`."""


def is_amx(isa: Isa) -> bool:
    """Whether kernels are for AMX, in any of its forms."""
    return isa.name == AMX.name


def missing() -> str:
    """What the emulation needs and this machine lacks; empty when all is there."""
    lacking = [*missing_features(VNNI_BF16.name)]
    return ", ".join(lacking if shutil.which(COMPILER) else [*lacking, COMPILER])


def emulated(func: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel with calls in place of the instructions of tiles."""
    _load()
    text = func.script(show_meta=True)
    text = VECTOR.sub(r'\1 = T.meta_var(T.Var("\1", "\2"))', text)
    return tvm.script.from_source(INSTRUCTION.sub(r'T.call_extern("int32", "tile_\1"', text))


@cache
def _load() -> None:
    """Puts `tiles.c` into this process, whose functions compiled code finds by name."""
    with tempfile.TemporaryDirectory(prefix="amx-tiles-") as folder:
        library = Path(folder) / "tiles.so"
        # The kernels' sums are compared bit by bit with each other, so nothing may be contracted.
        flags = ["-O2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC"]
        subprocess.run([COMPILER, *flags, "-o", library, TILES, "-lm"], check=True)
        ctypes.CDLL(os.fspath(library), mode=ctypes.RTLD_GLOBAL)
