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

    It gives out(norm(v * silu(z))), where each group is normalised alone, or there is no norm. A
    sequence keeps the last kernel - 1 inputs of the convolution, and h of each head.
    """

    heads: int
    head_dim: int
    state: int
    groups: int
    kernel: int
    norm: bool = True

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


@dataclass(frozen=True)
class GatedDeltaSpec:
    """A gated delta rule (Yang et al. 2024). in(y) is q, k and v, a gate z, and a and b, a number
    of each head. q, k and v go through a convolution over the last `kernel` tokens, and SiLU. Heads
    of values share those of q and k, which are divided by sqrt(sum of squares + 1e-6), and q by
    sqrt(key_dim) too. A head has a state h [head_dim, key_dim], and a number `decay` below 0:

        h = exp(decay * softplus(a + bias)) * h;  h = h + sigmoid(b) * (v - h k) k^T;  o = h q

    It gives out(norm(o) * silu(z)), where each head is normalised alone, with the same weights. A
    sequence keeps the last kernel - 1 inputs of the convolution, and h of each head.
    """

    key_heads: int
    key_dim: int
    heads: int
    """Of values."""
    head_dim: int
    """Of a head of values."""
    kernel: int
    in_turn: bool = False
    """Heads of values have the heads of keys in turn; else neighbours share one."""

    @property
    def inner(self) -> int:
        """Numbers of v, of z and of o."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Numbers of q, and of k."""
        return self.key_heads * self.key_dim

    @property
    def channels(self) -> int:
        """Of the convolution: q, k and v."""
        return 2 * self.keys + self.inner

    @property
    def parts(self) -> dict[str, int]:
        """Rows of the matrices of the input."""
        return {"qkv": self.channels, "z": self.inner, "a": self.heads, "b": self.heads}

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sequence: inputs of the convolution, the oldest token first; h."""
        return (self.kernel - 1, self.channels), (self.heads, self.head_dim, self.key_dim)


Recurrent: TypeAlias = ShortConvSpec | Mamba2Spec | GatedDeltaSpec
RECURRENT = (ShortConvSpec, Mamba2Spec, GatedDeltaSpec)
