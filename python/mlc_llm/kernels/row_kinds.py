"""What may become of a row before a product reads it: a norm, an activation, or nothing.

    "plain"         X[row, i]
    "norm"          X[row, i] * inverse * weight[i]                     inverse = 1 / sqrt(mean(x^2)
                                                                        + eps)
    "layer_norm"    (X[row, i] - mean) * inverse * weight[i] + bias[i]  inverse = 1 / sqrt(variance
                                                                        + eps)
    "silu", ...     act(X[row, i]) * X[row, k + i]
    "silu_biased"   act(X[row, i] + weight[i]) * (X[row, k + i] + bias[i])
    "silu_alone"    act(X[row, i]), and "silu_alone_biased": act(X[row, i] + weight[i])

"clamped_swiglu" is a function of both halves. "sigmoid" is there without a bias, of two halves.

X       float32 [m, k], or [m, 2 k] where two halves are multiplied
weight  float32 [k]; kinds that read none get X again
bias    float32 [k]; only of kinds with two vectors
"""

from __future__ import annotations

from typing import Literal

from mlc_llm.kernels.types import Buffer, Index
from mlc_llm.record import record


@record()
class Kind:
    """What a kind reads, and what it computes."""

    norm: Literal["rms", "layer"] | None = None
    activation: str | None = None
    is_gated: bool = False
    is_biased: bool = False

    @property
    def vectors(self) -> int:
        """How many of `weight` and `bias` it reads."""
        return int(self.norm is not None or self.is_biased) + int(
            self.norm == "layer" or (self.is_biased and self.is_gated)
        )

    @property
    def statistics(self) -> int:
        """Numbers of a row that a norm finds first."""
        return 2 if self.norm == "layer" else 1

    @property
    def unread(self) -> tuple[str, ...]:
        """Arguments that its kernels do not have."""
        return () if self.vectors == 2 else ("BIAS",)


@record(eq=False)
class Given:
    """The buffers that a row is made of."""

    x: Buffer
    weight: Buffer
    bias: Buffer


ALONE = ("silu", "gelu_tanh", "gelu")
"""Functions of one number."""
WITHOUT_GATE = ("squared_relu",)
"""More of them, which stand alone."""
UNBIASED = ("sigmoid", "tanh")
"""Those that have no bias, too."""
CLAMPED = "clamped_swiglu"


def _kinds() -> dict[str, Kind]:
    """All kinds by name."""
    found = {"plain": Kind(), "norm": Kind(norm="rms"), "layer_norm": Kind(norm="layer")}
    found["sigmoid"] = Kind(activation="sigmoid", is_gated=True)
    for name in (*ALONE, CLAMPED):
        found[name] = Kind(activation=name, is_gated=True)
        found[f"{name}_biased"] = Kind(activation=name, is_gated=True, is_biased=True)
    for name in (*ALONE, *WITHOUT_GATE):
        found[f"{name}_alone_biased"] = Kind(activation=name, is_biased=True)
    for name in (*ALONE, *WITHOUT_GATE, *UNBIASED):
        found[f"{name}_alone"] = Kind(activation=name)
    return found


KINDS = _kinds()


def input_width(kind: str, k: int) -> int:
    """Columns of X."""
    return 2 * k if KINDS[kind].is_gated else k


def weight_shape(kind: str, k: int, m: Index) -> tuple[Index, ...]:
    """Shape of the second argument."""
    return (k,) if KINDS[kind].vectors else (m, input_width(kind, k))
