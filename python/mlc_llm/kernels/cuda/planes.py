"""How a row lies in memory that a product reads: two planes of float16.

A number x of a row is scale * (high + low): `scale` is a power of two, such that the largest number
of the row is between 2^14 and 2^15 of them, `high` the nearest float16, `low` the float16 nearest
to what is left. So 22 bits of x stay, and more of them the smaller x is beside the largest number.

Words (uint32) of a row of k columns, which are a multiple of 32:

    0           high, two numbers a word, the first in the low half
    k/2         low, likewise
    k           float32 bits: the sum of (high + low), before rounding, of each 16 columns
    k + k/16    float32 bits: scale
"""

from __future__ import annotations

SUMMED = 16
"""Columns that share a sum."""
LARGEST_EXPONENT = 14
"""Of the largest number of a row, divided by the scale."""
ALIGNMENT = 4
"""Words that are read at once."""


def low_start(k: int) -> int:
    """The word where the plane of low numbers begins."""
    return k // 2


def sum_start(k: int) -> int:
    """The word where the sums begin."""
    return k


def scale_word(k: int) -> int:
    """The word of the scale."""
    return k + k // SUMMED


def row_words(k: int) -> int:
    """Words of a row, with those that are left over."""
    return -(-(scale_word(k) + 1) // ALIGNMENT) * ALIGNMENT
