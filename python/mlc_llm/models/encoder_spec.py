"""What an encoder has that a decoder has not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EncoderSpec:
    """Each token sees its whole text, on both sides, and the vectors behind the last layer are the
    result: there is no head over the vocabulary. The embedding has a norm."""

    token_types: int = 0
    """Rows of a table of which one is added to each embedding: 0 for a text, 1 for the second one
    of a pair. 0: there is no table."""
    labels: int = 0
    """Scores of a pair: out(tanh(dense(vector of the first token))), for a model that compares two
    texts; 0: it does not."""
