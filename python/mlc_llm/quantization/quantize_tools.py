"""What the quantisers of ggml's types share. Columns are float32 [values of a group, groups]."""

from __future__ import annotations

import numpy as np

from mlc_llm.quantization.block_format import Bytes, Floats


def first_largest(x: Floats) -> Floats:
    """[groups]: the value with the largest size, with its sign; the first one of equal ones."""
    low, high = x.min(axis=0), x.max(axis=0)
    largest: Floats = np.where(high > -low, high, low)
    equal = np.flatnonzero(high == -low)
    if len(equal):
        columns = x[:, equal]
        first = np.abs(columns).argmax(axis=0)
        largest[equal] = columns[first, np.arange(len(equal))]
    return largest


def reciprocal(x: Floats) -> Floats:
    """1 / x, and 0 where x is 0."""
    with np.errstate(over="ignore"):
        found: Floats = np.divide(np.float32(1), x, out=np.zeros_like(x), where=x != 0)
    return found


def halves(x: Floats) -> Bytes:
    """float16 [groups] as bytes [groups, 2]."""
    return x.astype("<f2").view(np.uint8).reshape(-1, 2)


def sums(x: Floats) -> Floats:
    """[groups]: the sum of each column, added from the first value on."""
    if x.shape[1] == 1:  # NumPy would add them in another order
        one: Floats = np.add.accumulate(x, axis=0)[-1]
        return one
    total: Floats = np.add.reduce(x, axis=0)
    return total
