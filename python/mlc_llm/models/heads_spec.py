"""What draft heads are."""

from __future__ import annotations

from mlc_llm.record import record


@record()
class MedusaSpec:
    """Heads that each draft a token from one hidden vector of another model (Medusa, Cai et al.
    2024): head i makes logits for the token i + 2 places behind the one with that vector."""

    heads: int
    blocks: int
    """Before the matrix over the vocabulary, each x += silu(x W^T + bias)."""
