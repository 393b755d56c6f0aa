"""What LoRA adapters add to the result of a matrix, as a call of a CPU kernel."""

from __future__ import annotations

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.inputs import Input
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.kernels.cpu.adapters import add_adapters


def with_adapters(y: Tensor, x: Input, inputs: AdapterInputs, isa: Isa) -> Tensor:
    """y in place. x: what the matrix has read."""
    columns, width = int(inputs.down.shape[3]), int(y.shape[1])
    kernel = add_adapters(
        x.kind, columns, width, inputs.widths, isa.adapter_dtype, isa.lanes, x.eps
    )
    args = [*x.arguments, inputs.down, inputs.up, inputs.ranks, inputs.slots, y]
    name = f"{x.kind}_add_adapters"
    return op.tensor_ir_inplace_op(kernel, name, args, len(args) - 1, float_tensor(*y.shape))
