"""How a decoder ranks documents: the prompt that it reads, and what its scores are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

QUERY, DOCUMENT = "{query}", "{document}"
"""The places of the texts in a prompt."""


@record(eq=False)
class Ranking:
    """See the file."""

    template: str
    """The text of the prompt, with `QUERY` and `DOCUMENT` in it."""
    direction: npt.NDArray[np.float32]
    """[hidden]. For two scores, of which the softmax is wanted, it is their difference."""

    def score(self, hidden: Sequence[float]) -> float:
        """hidden: the vector of the prompt's last token, behind the last norm. The sigmoid of the
        score says how well the document answers the query."""
        return float(self.direction @ np.asarray(hidden, np.float32))
