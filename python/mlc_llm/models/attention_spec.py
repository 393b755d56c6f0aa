"""What attention is, as plain numbers."""

from __future__ import annotations

from typing import Literal

from mlc_llm.record import record

QKNorm = Literal["head", "all"]
"""Over each head with one weight vector for all of them, or over all heads of a token together."""


@record()
class RopeSpec:
    """Rotary position embedding (Su et al. 2021): angle = position * theta^(-2i/dim) / factor_i.

    Halves of a head are paired: element i turns with element i + dim/2.
    """

    theta: float
    dim: int
    """Elements of a head that are rotated."""
    linear: float = 1.0
    """Positions are divided by this."""
    factors: str | tuple[float, ...] | None = None
    """Divisors (Llama 3 scaling), one a frequency, or the name of the file's tensor of them."""
    magnitude: float = 1.0
    """Rotated elements are multiplied by this (YaRN, Peng et al. 2023; LongRoPE)."""
    long_factors: str | tuple[float, ...] | None = None
    """The `factors` where a sequence may get longer than `long_after` tokens (LongRoPE, Ding et al.
    2024). All of a sequence has the same ones."""
    long_after: int = 0


@record()
class QueryScaling:
    """A query at a position p is multiplied by 1 + beta * ln(1 + floor(p / context)) (Llama 4)."""

    beta: float
    context: int


@record()
class AttentionSpec:
    """Causal attention with grouped queries. Sizes are in elements, the window in tokens."""

    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    """Factor of the scores, before the softmax."""
    rope: int | None = 0
    """Index into `ModelSpec.ropes`; None: queries and keys are not rotated."""
    window: int | None = None
    """A token sees the last `window` tokens, itself included; None: all before it."""
    reach: int | None = None
    """Of an encoder: a token sees so many tokens on each side; None: all of its text."""
    sink_query: bool = False
    """The engine's window, not the model's own, decides what is seen: the first tokens of a
    sequence are seen with a query of their own, turned by `sink_position`."""
    qk_norm: QKNorm | None = None
    """Queries and keys get an RMS norm before they are rotated."""
    value_norm: bool = False
    """Values get an RMS norm without weights, each head alone."""
    values_are_keys: bool = False
    """There is no matrix of values: they are the keys, before these are normalised."""
    shares: int | None = None
    """The layer whose keys and values this one reads; None: it has its own."""
    query_scaling: QueryScaling | None = None
    score_cap: float | None = None
    """A score s becomes cap * tanh(s / cap), before the softmax."""
    learned_sinks: bool = False
    """Each head has a learned score more. It takes part in the softmax and has no value."""
    gated: bool = False
    """What the heads give is multiplied by sigmoid of a gate, a matrix of the input more."""
    qkv_bias: bool = False
    output_bias: bool = False

    @property
    def parts(self) -> tuple[str, ...]:
        """Matrices of the input: of queries, keys and values, and of a gate."""
        if self.shares is not None:
            return ("q",)
        gate = ("gate",) if self.gated else ()
        return ("q", "k", *gate) if self.values_are_keys else ("q", "k", "v", *gate)

    def width_of(self, part: str) -> int:
        """Rows of one of `parts`."""
        return self.kv_width if part in ("k", "v") else self.query_width

    @property
    def query_width(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        return self.kv_heads * self.head_dim
