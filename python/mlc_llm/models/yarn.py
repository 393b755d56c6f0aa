"""YaRN (Peng et al. 2023): a rotary embedding for longer texts than a model was first trained for.

Waves that turn often within the first training's context stay as they are. Waves that turn seldom
get longer by a factor. Between them, the two frequencies are mixed.
"""

from __future__ import annotations

import math

from mlc_llm.errors import ModelFileError
from mlc_llm.models.attention_spec import RopeSpec
from mlc_llm.record import record

MOST_FACTOR = 1e6


@record()
class Yarn:
    """What a model file says of it."""

    factor: float
    """Long waves get longer by this."""
    context: int
    """Tokens of the first training."""
    magnitude: float
    """Rotated elements are multiplied by this."""
    fast: float = 32.0
    """A wave that turns more often within the context is short."""
    slow: float = 1.0
    """A wave that turns less often within the context is long."""
    truncate: bool = True
    """The two limits are whole numbers of a wave."""

    def rope(self, theta: float, dim: int) -> RopeSpec:
        """Of a head's first `dim` elements. Raises ModelFileError."""
        if theta <= 1:
            raise ModelFileError(f"a rotary theta of {theta}; more than 1 was expected")
        if not 1 / MOST_FACTOR <= self.factor <= MOST_FACTOR:  # else a divisor could be zero
            words = f"{1 / MOST_FACTOR:g} to {MOST_FACTOR:g} was expected"
            raise ModelFileError(f"a YaRN factor of {self.factor:g}; {words}")
        low, high = (self._wave(turns, theta, dim) for turns in (self.fast, self.slow))
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, dim - 1)
        width = high - low or 0.001
        long = (min(max((i - low) / width, 0.0), 1.0) for i in range(dim // 2))
        divisors = tuple(1 / (part / self.factor + 1 - part) for part in long)
        return RopeSpec(theta, dim, factors=divisors, magnitude=self.magnitude)

    def _wave(self, turns: float, theta: float, dim: int) -> float:
        """The wave, a broken number from 0 to dim / 2, that turns so often within the context."""
        return dim * math.log(self.context / (turns * 2 * math.pi)) / (2 * math.log(theta))


def magnitude(factor: float, part: float = 1.0) -> float:
    """Of a factor by which waves get longer; part: how much of the paper's correction is taken."""
    return 0.1 * part * math.log(factor) + 1 if factor > 1 else 1.0
