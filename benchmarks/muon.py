"""An optimiser for matrices: the step is the nearest orthogonal matrix to the gradient's mean.

Muon (Jordan et al. 2024) with the scale of Moonlight (Liu et al. 2025), in the numbers of
`bf16.py`: torch's own one computes in bfloat16, which many CPUs do slowly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from bf16 import NUMBERS

_STEPS = 5
_FACTORS = (3.4445, -4.7750, 2.0315)


class Muon:
    """`step` changes the parameters by their gradients."""

    def __init__(self, parameters: Sequence[torch.Tensor], memory: float = 0.95) -> None:
        self._parameters, self._memory = parameters, memory
        self._means = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, rate: float) -> None:
        """rate: as of AdamW."""
        for one, mean in zip(self._parameters, self._means, strict=True):
            assert one.grad is not None
            mean.lerp_(one.grad, 1 - self._memory)
            turned = orthogonal(one.grad.lerp(mean, self._memory))
            one.sub_(turned, alpha=rate * 0.2 * max(one.shape) ** 0.5)


def orthogonal(x: torch.Tensor) -> torch.Tensor:
    """The orthogonal matrix near x, roughly: singular values become 0.7 to 1.2."""
    if x.shape[0] > x.shape[1]:
        return orthogonal(x.T).T
    x, (first, second, third) = (x / (x.norm() + 1e-7)).to(NUMBERS), _FACTORS
    for _ in range(_STEPS):
        square = x @ x.T
        x = first * x + (second * square + third * square @ square) @ x
    return x.float()
