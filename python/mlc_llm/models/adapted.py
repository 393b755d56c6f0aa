"""Matrices that LoRA adapters may change, token by token."""

from __future__ import annotations

from collections.abc import Sequence

from tvm.relax.frontend import nn
from tvm.relax.frontend.nn import Tensor

from mlc_llm.backends.operands import AdapterInputs, Matrix
from mlc_llm.models.spec import ModelSpec

FACTORS = 3
"""Tensors that the adapters of a matrix have: `AdapterInputs.down`, `up` and `ranks`."""


def adapter_inputs(
    model: nn.Module, spec: ModelSpec, slots: Tensor, factors: Sequence[Tensor]
) -> list[tuple[Matrix, AdapterInputs]]:
    """Of each matrix of the model that they may change."""
    found = []
    for i, one in enumerate(spec.adapted):
        down, up, ranks = factors[FACTORS * i : FACTORS * (i + 1)]
        found.append((_matrix(model, one.name), AdapterInputs(slots, down, up, ranks, one.widths)))
    return found


def _matrix(model: nn.Module, name: str) -> Matrix:
    """The matrix of a name such as layers.0.qkv.q_k_v."""
    found = model
    for part in name.split("."):
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found
