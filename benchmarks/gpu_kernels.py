"""Kernels of `gpu_first_run.py`, and the library that they are compiled into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor
from tvm.script import tirx as T

from mlc_llm.backends.cuda.codegen import compile_module

COLUMNS = 1024
"""Numbers of a row, which one block of threads reads: 4 a thread."""
LINKS = 20
"""Kernels of a chain."""


@T.prim_func(private=True, s_tir=False)
def _doubled(a: T.handle, b: T.handle):
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    rows = T.int32()
    A = T.match_buffer(a, (rows, COLUMNS), "float32")
    B = T.match_buffer(b, (rows, COLUMNS), "float32")
    T.device_entry()
    row = T.cta_id([rows])
    tx = T.thread_id([COLUMNS // 4])
    for i in T.vectorized(4):
        B[row, tx * 4 + i] = A[row, tx * 4 + i] * T.float32(2)


class Chain(nn.Module):  # type: ignore[misc]
    """Float32 [rows, COLUMNS], doubled once or often."""

    def once(self, x: Tensor) -> Tensor:
        return _double(x)

    def often(self, x: Tensor) -> Tensor:
        for _ in range(LINKS):
            x = _double(x)
        return x


def _double(x: Tensor) -> Tensor:
    out = Tensor.placeholder([x.shape[0], COLUMNS], "float32")
    return nn.op.tensor_ir_op(_doubled, "doubled", [x], out)


def build(arch: str, folder: Path, compile_source: Callable[[str], bytes] | None = None) -> None:
    """Compiles the library into a folder, which exists; as `compile_module`."""
    inputs: dict[str, Any] = {
        "x": nn.spec.Tensor(["rows", COLUMNS], "float32"),
        "$": {"param_mode": "none", "effect_mode": "none"},
    }
    module, _ = Chain().export_tvm({"once": inputs, "often": inputs})
    compile_module(module, arch, folder, compile_source)
