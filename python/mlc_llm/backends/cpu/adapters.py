"""What LoRA adapters add to the result of a matrix, as a call of a CPU kernel."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.kernels.cpu.adapters import add_adapters


def with_adapters(y: Tensor, x: Tensor, inputs: AdapterInputs, isa: Isa) -> Tensor:
    """y in place. x: what the matrix read, float32 [tokens, columns]."""
    kernel = add_adapters(
        int(x.shape[1]), int(y.shape[1]), inputs.widths, isa.adapter_dtype, isa.lanes
    )
    args = [x, inputs.down, inputs.up, inputs.ranks, inputs.slots, y]
    return op.tensor_ir_inplace_op(kernel, "add_adapters", args, 5, float_tensor(*y.shape))
