"""Lengths of time in requests of Ollama's API."""

from __future__ import annotations

import math
from typing import Any

import pytest

from mlc_llm.serve.ollama.durations import seconds_of

LENGTHS = [
    (300, 300.0),
    (0.5, 0.5),
    (0, 0.0),
    ("0", 0.0),
    ("5m", 300.0),
    ("1h30m", 5400.0),
    ("1.5h", 5400.0),
    ("2h0m3s", 7203.0),
    ("300ms", 0.3),
    ("10µs", 1e-5),
    ("+4s", 4.0),
    (".5s", 0.5),
    (-1, math.inf),
    ("-1", math.inf),
    ("-1m", math.inf),
    (None, None),
]


@pytest.mark.parametrize(("given", "seconds"), LENGTHS, ids=str)
def test_lengths(given: Any, seconds: float | None) -> None:
    found = seconds_of(given)
    assert found == seconds if found is None else found == pytest.approx(seconds)
