"""NumPy for modules that a short answer needs nothing of NumPy from: it is imported when it is
first used. To import it takes a sixth of the time in which a command gives its first token.

    if TYPE_CHECKING:
        import numpy as np
    else:
        from mlc_llm.later_numpy import np
"""

from __future__ import annotations


class _NumPy:
    """Has each name of NumPy when it is asked for."""

    def __getattr__(self, name: str) -> object:
        import numpy

        found = getattr(numpy, name)
        setattr(self, name, found)  # the next one who asks finds it here
        return found


np = _NumPy()
