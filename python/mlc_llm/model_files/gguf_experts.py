"""Experts of GGUF files that are stored in other ways than one stack of gates and one of ups.

Newer converters of llama.cpp may write the gates and the ups of all experts as one stack: the first
half of the rows of each matrix is the gate. Files of Mixtral from its first months have a tensor
for each expert.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.tensor import Tensor

FUSED = "ffn_gate_up_exps.weight"
_ALONE = re.compile(r"(blk\.\d+\.ffn_(?:gate|up|down))\.(\d{1,6})\.weight")


def with_stacks(tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The tensors under the names of stacks, all other ones as they are. Nothing is copied. Raises
    ModelFileError naming the tensor at fault."""
    found: dict[str, Tensor] = {}
    alone: dict[str, dict[int, Tensor]] = defaultdict(dict)
    for name, tensor in tensors.items():
        match = _ALONE.fullmatch(name)
        if match:
            alone[match[1]][int(match[2])] = tensor
        elif name.endswith(f".{FUSED}"):
            found |= _halves(name.removesuffix(FUSED), tensor)
        else:
            found[name] = tensor
    found |= {f"{start}_exps.weight": _stack(start, ones) for start, ones in alone.items()}
    return found


def _halves(start: str, tensor: Tensor) -> dict[str, Tensor]:
    """The gates and the ups of a fused stack."""
    from mlc_llm.model_files.tensor_views import RowsView

    if len(tensor.shape) != 3 or tensor.shape[1] % 2:
        words = "expected [experts, rows of gate and up, columns]"
        raise ModelFileError(f"tensor {tensor.name} has shape {tensor.shape}, {words}")
    count, both, columns = tensor.shape
    shape = (count, both // 2, columns)
    return {
        f"{start}ffn_gate_exps.weight": RowsView(tensor, shape, 0),
        f"{start}ffn_up_exps.weight": RowsView(tensor, shape, both // 2),
    }


def _stack(start: str, ones: Mapping[int, Tensor]) -> Tensor:
    """The matrices of all experts, which have the numbers from 0 on."""
    from mlc_llm.model_files.tensor_views import StackView

    stack = []
    for i in range(max(ones) + 1):
        if i not in ones:
            raise ModelFileError(f"there is no tensor {start}.{i}.weight")
        one, first = ones[i], ones[min(ones)]
        if len(one.shape) != 2 or (one.shape, one.kind) != (first.shape, first.kind):
            words = f"{one.kind} of shape {one.shape}, not {first.kind} of shape {first.shape}"
            raise ModelFileError(f"tensor {one.name} is {words} as {first.name} is")
        stack.append(one)
    return StackView(stack)
