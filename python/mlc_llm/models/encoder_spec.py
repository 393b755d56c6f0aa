"""What an encoder has that a decoder has not."""

from __future__ import annotations

from typing import Literal, TypeAlias

from mlc_llm.record import record

PairPooling: TypeAlias = Literal["cls", "mean"]


@record()
class PairSpec:
    """What makes the scores of a pair: out(norm(activation(dense(vector)))), without the norm if
    there is none."""

    pooling: PairPooling = "cls"
    """The vector of the first token, or the mean of all."""
    activation: Literal["tanh", "gelu"] = "tanh"
    bias: bool = True
    """Of `dense`; `out` has always one."""
    norm: bool = False


@record()
class EncoderSpec:
    """Each token sees its text on both sides, and the vectors behind the last layer are the result:
    there is no head over the vocabulary."""

    token_types: int = 0
    """Rows of a table of which one is added to each embedding: 0 for a text, 1 for the second one
    of a pair. 0: there is no table."""
    labels: int = 0
    """Scores of a pair, for a model that compares two texts; 0: it does not."""
    pair: PairSpec = PairSpec()
    embedding_norm: bool = True
    """The embedding has a norm."""
    last_norm: bool = False
    """There is a norm behind the last layer."""
    projections: tuple[int, ...] = ()
    """Rows of matrices that multiply the vector of a text, one after the other."""
