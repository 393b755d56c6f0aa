"""What LoRA adapters add to the result of a matrix, as calls of CPU kernels."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.cpu.formats import WeightFormat
from mlc_llm.backends.cpu.inputs import Input, Packed
from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.backends.cpu.scratch import float_tensor
from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.kernels.cpu.adapter_asks import Factors
from mlc_llm.kernels.cpu.adapter_groups import group_tokens, table_size
from mlc_llm.kernels.cpu.adapters import NEVER, add_adapters
from mlc_llm.kernels.cpu.matmul import can_ask


class Adapted:
    """The matrices that adapters change."""

    def __init__(self, matrices: Sequence[tuple[Packed, AdapterInputs]], isa: Isa) -> None:
        self._matrices, self._isa = list(matrices), isa
        self._groups: Tensor | None = None

    def of(self, matrix: Packed) -> AdapterInputs | None:
        """None: no adapter changes the matrix."""
        return next((inputs for one, inputs in self._matrices if one is matrix), None)

    def asks(self, inputs: AdapterInputs, fmt: WeightFormat) -> Factors | None:
        """What the product of the matrix asks for."""
        if not can_ask(fmt, self._isa):
            return None
        return Factors(int(inputs.down.shape[3]), inputs.widths, self._isa.adapter_dtype)

    def factors(self, inputs: AdapterInputs) -> list[Tensor]:
        """What kernels read of the adapters: `down`, `up`, `ranks`, `slots` and `groups`."""
        return [
            *(inputs.down, inputs.up, inputs.ranks, inputs.slots),
            self._groups_of(inputs.slots),
        ]

    def add_to(self, y: Tensor, x: Input, inputs: AdapterInputs, fmt: WeightFormat) -> Tensor:
        """y in place. x: what the matrix has read; fmt: its format."""
        columns, width, isa = int(inputs.down.shape[3]), int(y.shape[1]), self._isa
        kernel = add_adapters(
            x.kind, columns, width, inputs.widths, isa.adapter_dtype, isa.lanes, x.eps,
            asked_from=isa.row_block if can_ask(fmt, isa) else NEVER,
        )  # fmt: skip
        args = [*x.arguments, *self.factors(inputs), y]
        name = f"{x.kind}_add_adapters"
        return op.tensor_ir_inplace_op(kernel, name, args, len(args) - 1, float_tensor(*y.shape))

    def _groups_of(self, slots: Tensor) -> Tensor:
        """Which tokens have the same adapter, found once: all matrices have the same slots."""
        if self._groups is None:
            out = Tensor.placeholder([table_size(slots.shape[0])], "int32")
            self._groups = op.tensor_ir_op(group_tokens(), "adapter_groups", [slots], out)
        return self._groups
