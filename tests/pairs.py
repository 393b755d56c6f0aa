"""Pairs of parameters, of which a quick run takes some."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

Parameter = type(pytest.param(None))


def every_other(first: Iterable[object], second: Iterable[object]) -> list[Any]:
    """All pairs, of which every other one is slow: each value is tested quickly with some of the
    others. Values may be `pytest.param`s of one value, whose names and marks count."""
    right = [_parameter(value) for value in second]
    return [
        _pair(_parameter(a), b, slow=(i + j) % 2 == 1)
        for i, a in enumerate(first)
        for j, b in enumerate(right)
    ]


def in_turn(first: Iterable[object], second: Iterable[object]) -> list[Any]:
    """All pairs, of which each value of `first` is quick with one of `second`: with the next one
    each time. The others are slow."""
    right = [_parameter(value) for value in second]
    return [
        _pair(_parameter(a), b, slow=(i - j) % len(right) != 0)
        for i, a in enumerate(first)
        for j, b in enumerate(right)
    ]


def _parameter(value: object) -> Any:
    if isinstance(value, Parameter):
        return value
    # A function's own text has its address, which is another one in each worker of pytest-xdist.
    return pytest.param(value, id=getattr(value, "__name__", str(value)))


def _pair(a: Any, b: Any, *, slow: bool) -> Any:
    marks = [*a.marks, *b.marks, *([pytest.mark.slow] if slow else [])]
    return pytest.param(*a.values, *b.values, id=f"{a.id}-{b.id}", marks=marks)
