"""8-bit floats: sign, 4 bits of exponent and 3 of fraction (E4M3, OCP 8-bit Floating Point 2023).

There is no infinity. All ones mean NaN, and the exponent's bias is 7.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def _values() -> Floats:
    """The number of each byte."""
    byte = np.arange(256)
    exponent, fraction = (byte >> 3) & 15, (byte & 7) / 8
    normal = np.ldexp(1 + fraction, exponent - 7)
    size = np.where(exponent == 0, np.ldexp(fraction, -6), normal)
    size[(byte & 127) == 127] = np.nan
    return np.where(byte < 128, size, -size).astype(np.float32)


E4M3 = _values()
"""float32 [256]: the number of each byte."""
E4M3.flags.writeable = False
