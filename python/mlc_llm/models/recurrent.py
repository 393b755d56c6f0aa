"""Mixers that keep a state of fixed size for each sequence, instead of pages."""

from __future__ import annotations

from typing import TypeAlias

from mlc_llm.record import record


@record()
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


@record()
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


@record()
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


@record()
class Rwkv7Spec:
    """Time mixing of RWKV-7 (Peng et al. 2025). With y' of the token before and learned factors,
    each of r, w, k, v, a and g reads a mixture y + factor * (y' - y) of its own. r, k and v are
    products of it; the others are two matrices of a low rank, with a tanh (w) or a sigmoid (g)
    between them. A head has a state h [key, value]; x is the value of the model's first layer:

        w = exp(-e^-0.5 * sigmoid(w + w0));  a = sigmoid(a + a0);  v = v + (x - v) * sigmoid(b + v0)
        u = k * k_k / |k * k_k|;  k = k * (1 + (a - 1) * k_a)
        h = w * h - (a * u) (u h) + k v^T;  o = r h

    It gives out((norm(o) + (r * k . r_k) v) * g), where each head is normalised alone (layer norm).
    b is two matrices more of the mixture of v; the first layer has none. A sequence keeps y of the
    last token, and h of each head.
    """

    heads: int
    head_dim: int
    decay_rank: int
    """Of w."""
    rate_rank: int
    """Of a."""
    value_rank: int
    """Of b; 0: it is the first layer."""
    gate_rank: int
    """Of g."""
    eps: float
    """Of the norm of a head."""

    @property
    def width(self) -> int:
        """Numbers of a token: the model's hidden size."""
        return self.heads * self.head_dim

    @property
    def ranks(self) -> dict[str, int]:
        """Of the pairs of matrices, by their letter in files."""
        found = {"w": self.decay_rank, "a": self.rate_rank, "g": self.gate_rank}
        return found | ({"v": self.value_rank} if self.value_rank else {})

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one sequence: the last y; h."""
        return (1, self.width), (self.heads, self.head_dim, self.head_dim)


Convolving: TypeAlias = ShortConvSpec | Mamba2Spec | GatedDeltaSpec
CONVOLVING = (ShortConvSpec, Mamba2Spec, GatedDeltaSpec)
"""The mixers with a convolution."""
Recurrent: TypeAlias = Convolving | Rwkv7Spec
RECURRENT = (*CONVOLVING, Rwkv7Spec)
