"""What the feed-forward network of a layer is, as plain numbers: a dense one, or experts."""

from __future__ import annotations

from typing import Literal, TypeAlias

from mlc_llm.record import record

Activation = Literal[
    "silu", "gelu_tanh", "gelu", "sigmoid", "tanh", "squared_relu", "clamped_swiglu"
]
"""gelu is the exact one, with erf. clamped_swiglu (gpt-oss, OpenAI 2025) clamps gate and up to 7:
gate * sigmoid(1.702 gate) * (up + 1)."""
Router = Literal["softmax_then_top", "top_then_softmax", "sigmoid_then_top"]
"""Whether the router's softmax is over all experts, or over the chosen ones only; or whether each
score has a sigmoid."""


@record()
class DenseSpec:
    """down(activation(gate(y)) * up(y)); gate and up have `intermediate` rows.

    If it is not gated, it is down(activation(up(y))). Of 0 rows, there is no network."""

    intermediate: int
    activation: Activation = "silu"
    bias: bool = False
    """All matrices have one."""
    gated: bool = True
    shifted: int = 0
    """So many numbers, the hidden size: the network reads y + factors * (y' - y), with y' of the
    token before and learned factors, and keeps y of a sequence's last token. 0: it reads y."""

    @property
    def width(self) -> int:
        """Numbers of a token that exist at once."""
        return self.intermediate

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """What it keeps of one sequence."""
        return ((1, self.shifted),) if self.shifted else ()


@record()
class ExpertsSpec:
    """A mixture of experts (Shazeer et al. 2017): a router, a matrix [num_experts, hidden], chooses
    `experts_per_token` experts for each token. Each expert is a gated dense network; their results
    are added, times their weights."""

    num_experts: int
    experts_per_token: int
    intermediate: int
    """Of one expert."""
    activation: Activation = "silu"
    router: Router = "softmax_then_top"
    renormalize: bool = False
    """The weights of the chosen experts are divided by their sum."""
    choice_bias: bool = False
    """Experts are chosen by their weights plus a learned number of each; of sigmoids only."""
    weight_scale: float = 1.0
    """The weights are multiplied by it; of sigmoids only."""
    bias: bool = False
    """The router and all matrices of the experts have one."""
    shared_intermediate: int = 0
    """Of a network that computes every token, beside the chosen ones; 0: there is none."""
    shared_gate: bool = False
    """What that network gives is multiplied by sigmoid(w . y), one factor a token."""

    @property
    def width(self) -> int:
        """Numbers of a token that exist at once."""
        return self.experts_per_token * self.intermediate + self.shared_intermediate

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]:
        """It keeps nothing."""
        return ()

    @property
    def shared(self) -> DenseSpec | None:
        wide = self.shared_intermediate
        return DenseSpec(wide, self.activation) if wide else None


FeedForward: TypeAlias = DenseSpec | ExpertsSpec
NO_NETWORK = DenseSpec(0)
"""Of a layer that is a mixer alone."""
