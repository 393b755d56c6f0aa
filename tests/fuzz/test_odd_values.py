"""Each value of each JSON that others write, in place of it something odd: the parser reads it or
refuses it with one line of ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from parser_seeds import seeds
from parser_targets import TARGETS, read_or_refuse

ODD: list[Any] = [
    *(None, True, -1, 0, 1.5, 2**70, "", "a\nb", "🌙", [], {}, [[]], [1], ["a"], [None]),
    *({"a": []}, {"": None}),
]
MOST_ITEMS = 4
"""Of a list. The others are like them."""

Place = tuple[str | int, ...]


def places(value: Any, above: Place = ()) -> Iterator[Place]:
    yield above
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from places(inner, (*above, name))
    elif isinstance(value, list):
        for i, inner in enumerate(value[:MOST_ITEMS]):
            yield from places(inner, (*above, i))


def put(value: Any, place: Place, odd: Any) -> Any:
    """The value with something odd at a place."""
    if not place:
        return odd
    made = value.copy()
    made[place[0]] = put(value[place[0]], place[1:], odd)
    return made


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["tensor-cache.json", "tokenizer.json", "tekken.json", "request", "schema"]
)
def test_odd_values_are_read_or_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    count = 0
    for seed in map(json.loads, seeds()[name]):
        for place in places(seed):
            for odd in ODD:
                data = json.dumps(put(seed, place, odd)).encode()
                try:
                    read_or_refuse(TARGETS[name], data)
                except Exception as error:
                    raise AssertionError(f"{place} = {odd!r}: {error!r}") from error
                count += 1
    assert count > 200
