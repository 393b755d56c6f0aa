"""The operations of layers that keep a state: a part of `ops.py`. No TVM is imported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tvm.relax.frontend.nn import Tensor

    from mlc_llm.backends.operands import (
        GatedDeltaVectors,
        Input,
        Mamba2Vectors,
        Part,
        Rwkv7Parts,
        Rwkv7Vectors,
        StateInputs,
    )
    from mlc_llm.models.recurrent import GatedDeltaSpec, Mamba2Spec, Rwkv7Spec, ShortConvSpec


class StateOps(Protocol):
    """Each takes the states of a layer as `StateInputs`: where they lie, and which rows of the
    batch read and write which of them."""

    def short_conv(
        self, spec: ShortConvSpec, thirds: Tensor, weight: Tensor, inputs: StateInputs
    ) -> Input:
        """An Input: c * conv(b * u) for b, c and u, the thirds of a row. weight: float32
        [width, kernel], the newest token's last. A token takes the tokens before it from its row of
        the batch, and those before the row from the sequence's state."""

    def mamba2(
        self, spec: Mamba2Spec, projected: Tensor, vectors: Mamba2Vectors, inputs: StateInputs
    ) -> Input:
        """An Input: norm(v * silu(z)), [tokens, inner] (`models/recurrent.py`), without the norm
        if the spec has none. projected: z, x, B, C and dt side by side. Every token is computed
        alike, whatever the row that it is in."""

    def gated_delta(
        self,
        spec: GatedDeltaSpec,
        parts: Sequence[Part],
        vectors: GatedDeltaVectors,
        inputs: StateInputs,
    ) -> Input:
        """An Input: norm(o) * silu(z), [tokens, inner] (`models/recurrent.py`). parts: those of the
        spec. Every token is computed alike, whatever the row that it is in."""

    def token_shift(self, x: Input, factors: Tensor, inputs: StateInputs) -> Sequence[Input]:
        """For each row of the factors, float32 [mixtures, width], an Input: x + (x of the token
        before - x) * factors. A token takes the one before it from its row of the batch, and that
        before the row from the sequence's state."""

    def rwkv7(
        self, spec: Rwkv7Spec, parts: Rwkv7Parts, vectors: Rwkv7Vectors, inputs: StateInputs
    ) -> Input:
        """An Input: (norm(o) + (r * k . r_k) v) * g, [tokens, width] (`models/recurrent.py`).
        inputs: the state h alone. Every token is computed alike, whatever the row that it is
        in."""
