"""Mixers that keep a state of fixed size for each sequence, instead of pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class ShortConvSpec:
    """A gated short convolution (LFM2, Liquid AI 2025). With b, c and u, the thirds of in(y), it
    gives out(c * conv(b * u)). conv adds the last `kernel` tokens, each channel of each of them
    times a weight of its own. A sequence keeps the last kernel - 1 values of b * u as its state."""

    width: int
    """Channels: the model's hidden size."""
    kernel: int

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sequence, the oldest token first."""
        return ((self.kernel - 1, self.width),)


@dataclass(frozen=True)
class Mamba2Spec:
    """A selective state space (Mamba 2, Dao and Gu 2024). in(y) is z, x, B, C and dt, side by side;
    x, B and C go through a convolution over the last `kernel` tokens, and SiLU. A head has a state
    h [head_dim, state], a number `a` below 0, and a number `d`; heads of a group share B and C:

        dt = softplus(dt + bias);  h = exp(dt * a) * h + dt * x B^T;  v = h C + d * x

    It gives out(norm(v * silu(z))), where each group is normalised alone. A sequence keeps the last
    kernel - 1 inputs of the convolution, and h of each head.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int

    @property
    def inner(self) -> int:
        """Numbers of z, of x and of v."""
        return self.heads * self.head_dim

    @property
    def channels(self) -> int:
        """Of the convolution: x, B and C."""
        return self.inner + 2 * self.groups * self.state

    @property
    def rows(self) -> int:
        """Of the matrix `in`."""
        return self.inner + self.channels + self.heads

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sequence: inputs of the convolution, the oldest token first; h."""
        return (self.kernel - 1, self.channels), (self.heads, self.head_dim, self.state)


Recurrent: TypeAlias = ShortConvSpec | Mamba2Spec
