"""A kernel and a model so small that tests of the way to a GPU may compile them many times."""

from __future__ import annotations

import tvm
from fake_programs import COLUMNS
from tvm.relax.frontend import nn
from tvm.script import tirx as T


@T.prim_func(private=True)
def _doubled(a: T.handle, b: T.handle):  # type: ignore[no-untyped-def]
    T.func_attr({"tirx.is_scheduled": True, "tirx.noalias": True})
    rows = T.int32()
    A = T.match_buffer(a, (rows, COLUMNS), "float32")
    B = T.match_buffer(b, (rows, COLUMNS), "float32")
    T.device_entry()
    row = T.cta_id([rows])
    tx = T.thread_id([128])
    for i in range(COLUMNS // 128):
        B[row, i * 128 + tx] = A[row, i * 128 + tx] * T.float32(2)


def doubled_module() -> tvm.IRModule:
    """`doubled`: float32 [rows, COLUMNS], times two. Its kernel is `doubled_kernel`."""
    return tvm.IRModule({"doubled": _doubled})


class Doubler(nn.Module):
    """A model whose `forward` doubles float32 [rows, COLUMNS / 2, 2]."""

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        out = nn.Tensor.placeholder([x.shape[0], COLUMNS], "float32")
        flat = nn.op.reshape(x, (x.shape[0], COLUMNS))
        return nn.op.tensor_ir_op(_doubled, "doubled", [flat], out)


def doubler_module() -> tvm.IRModule:
    """Its Relax module."""
    mode = {"param_mode": "none", "effect_mode": "none"}
    inputs = {"x": nn.spec.Tensor(["rows", COLUMNS // 2, 2], "float32"), "$": mode}
    module, _ = Doubler().export_tvm({"forward": inputs})
    return module
