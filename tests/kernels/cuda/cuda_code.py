"""Compiles a kernel for GPUs and looks at its machine code."""

from __future__ import annotations

from collections.abc import Sequence

import tvm
from cubin import frame_bytes, opcodes

from mlc_llm.backends.cuda.build import cubin_module
from mlc_llm.backends.cuda.device_bin import device_module

ARCHITECTURES = ("sm_80", "sm_90a")


def check_code(
    kernel: tvm.tirx.PrimFunc, wanted: set[str], architectures: Sequence[str] = ARCHITECTURES
) -> None:
    """Its registers suffice: it keeps nothing in memory of its own. It has the instructions that
    are wanted (names in `cubin.OPCODES`)."""
    for arch in architectures:
        made = device_module(cubin_module(tvm.IRModule({"kernel": kernel}), arch))
        (name,) = made.names
        assert frame_bytes(made.code, name) == 0, arch
        found = opcodes(made.code, name)
        assert found >= wanted, (arch, found)
        assert not found & {"LDL", "STL"}, arch
