"""What LoRA adapters add to the result of a matrix, in plain Relax."""

from __future__ import annotations

from itertools import accumulate

from tvm.relax.frontend.nn import Tensor, op

from mlc_llm.backends.operands import AdapterInputs
from mlc_llm.backends.reference.tensors import taken


def adapter_sum(x: Tensor, inputs: AdapterInputs) -> Tensor:
    """[tokens, rows] for x [tokens, columns]: 0 for a token without an adapter."""
    tokens, slots, widths = x.shape[0], inputs.slots, inputs.widths
    none = op.zeros(slots.shape, "int32")
    has_one = op.reshape(op.astype(op.greater_equal(slots, none), "float32"), (tokens, 1, 1))
    own = op.maximum(slots, none)
    wide = op.reshape(x, (tokens, 1, 1, x.shape[1]))
    small = op.sum(taken(inputs.down, own) * wide, axis=3) * has_one  # [tokens, parts, rank]
    blocks = op.permute_dims(taken(inputs.up, own), [0, 2, 1, 3])
    up = op.reshape(blocks, (tokens, blocks.shape[1], sum(widths)))
    if len(widths) == 1:
        return op.reshape(op.matmul(small, up), (tokens, widths[0]))
    smalls = op.split(small, len(widths), axis=1)
    ups = op.split(up, list(accumulate(widths))[:-1], axis=2)
    sums = [op.matmul(*pair) for pair in zip(smalls, ups, strict=True)]
    return op.reshape(op.concat(sums, dim=2), (tokens, sum(widths)))
