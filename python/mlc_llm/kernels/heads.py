"""Sizes of the heads of attention, for every kernel that reads or writes them."""

from __future__ import annotations

from mlc_llm.record import record


@record()
class Heads:
    """Sizes of heads, and what becomes of queries."""

    heads: int
    kv_heads: int
    head_dim: int
    kv_dtype: str
    scale: float
    """Queries are multiplied by log2(e) * scale."""
    rope_dim: int
    """Elements of a head that turn."""
    query_scaling: tuple[float, int] | None = None
    """(beta, context): a query at position p is multiplied by 1 + beta * ln(1 + p // context)."""

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.rope_dim // 2

    @property
    def rest(self) -> int:
        """Elements of a head that stay."""
        return self.head_dim - self.rope_dim
