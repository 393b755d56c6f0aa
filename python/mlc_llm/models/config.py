"""What a model's file says about its shape, as plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from mlc_llm.kernels.formats import WeightFormat


@dataclass(frozen=True)
class RopeConfig:
    """Rotary position embedding: angle = position * theta^(-2i/dim) / factor_i."""

    theta: float
    dim: int
    factors: tuple[float, ...] | None = None
    """One divisor a frequency (Llama 3 scaling as GGUF stores it: `rope_freqs.weight`)."""
    linear: float = 1.0
    """Linear scaling: positions are divided by this."""


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a decoder with grouped-query attention. Sizes are in elements."""

    architecture: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    """Rows of the embedding, and of the head."""
    context_window: int
    norm_eps: float
    rope: RopeConfig
    tied_head: bool
    interleaved_rope: bool
    """The file pairs neighbouring elements (2i, 2i+1); rows are reordered to halves on loading."""
    formats: dict[str, WeightFormat] = field(default_factory=dict)
    """Packed format of every matrix, by parameter name without suffix."""
    active_vocab: int | None = None
    """How many rows, from the first on, are tokens of the tokenizer; None: all."""

    @property
    def tokens(self) -> int:
        """Rows of the output that may be chosen."""
        return self.vocab if self.active_vocab is None else self.active_vocab
