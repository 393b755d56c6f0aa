"""What LoRA adapters add to the result of a matrix, as calls of CPU kernels."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import Scratch, float_tensor
from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.kernels.cpu.adapters import adapter_down, adapter_up


def with_adapters(
    y: Tensor, x: Tensor, inputs: AdapterInputs, isa: Isa, scratch: Scratch
) -> Tensor:
    """y in place. x: what the matrix read, float32 [tokens, columns]."""
    parts, tables = len(inputs.widths), [inputs.ranks, inputs.slots]
    down = adapter_down(int(x.shape[1]), parts, isa.lanes)
    out = float_tensor(x.shape[0], parts, inputs.down.shape[2])
    small = scratch.call(down, "adapter_down", [x, inputs.down, *tables], out)
    up, args = adapter_up(int(y.shape[1]), inputs.widths, isa.lanes), [small, inputs.up, *tables, y]
    return op.tensor_ir_inplace_op(up, "adapter_up", args, 4, float_tensor(*y.shape))
