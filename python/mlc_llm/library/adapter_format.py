"""How the factors of LoRA adapters lie in memory.

    down  [adapters, parts, rank, columns]
    up    [adapters, rows / block, rank, block]

Threads share out the rows of a matrix: what a thread reads of `up` is in one piece. From single
lines of 64 bytes a thread gets a fifth of what the memory gives.
"""

from __future__ import annotations

import math

_MOST_ROWS = 32


def block_rows(widths: tuple[int, ...]) -> int:
    """Rows of a block, which all belong to one part. widths: rows of each part."""
    return math.gcd(_MOST_ROWS, *widths)
