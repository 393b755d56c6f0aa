"""Dataclasses that are made at first use behave like those of the standard library."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from mlc_llm.records import _dataclass

Maker = Callable[..., Any]
BOTH = pytest.mark.parametrize("maker", [dataclasses.dataclass, _dataclass])


def is_made(one: type) -> bool:
    return isinstance(vars(one)["__dataclass_fields__"], dict)


def point(maker: Maker) -> Any:
    @maker(frozen=True)
    class Point:
        kind: ClassVar[str] = "point"
        x: int
        y: int = 2
        names: list[str] = dataclasses.field(default_factory=list, compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError(self.x)

    return Point


@BOTH
def test_values_are_equal_hashed_shown_and_frozen(maker: Maker) -> None:
    made = point(maker)
    one = made(1)
    assert (one.x, one.y, one.names, made.y, one.kind) == (1, 2, [], 2, "point")
    assert one == made(1, y=2, names=["a"]) and hash(one) == hash(made(1)) and one != made(2)
    assert repr(one).endswith("Point(x=1, y=2, names=[])")
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.x = 3
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'x'"):
        made()
    with pytest.raises(ValueError, match="-1"):
        made(-1)
    match one:
        case made(x, y):
            assert (x, y) == (1, 2)
        case _:
            raise AssertionError


@BOTH
def test_tools_for_dataclasses_know_the_class_before_its_first_object(maker: Maker) -> None:
    assert [one.name for one in dataclasses.fields(point(maker))] == ["x", "y", "names"]
    assert dataclasses.is_dataclass(point(maker))
    one = point(maker)(1)
    assert dataclasses.asdict(dataclasses.replace(one, y=5)) == {"x": 1, "y": 5, "names": []}


@BOTH
def test_a_class_below_another_has_its_fields_too(maker: Maker) -> None:
    base = point(maker)

    @maker(frozen=True, kw_only=True)
    class Wide(base):  # type: ignore[misc]
        z: int

    class Plain(base):  # type: ignore[misc]
        pass

    assert Plain(4).x == 4
    wide = Wide(1, z=3)
    assert (wide.x, wide.y, wide.z) == (1, 2, 3)
    assert wide != base(1) and base(1) == base(1)


@BOTH
def test_wrong_classes_are_refused(maker: Maker) -> None:
    base = point(maker)
    with pytest.raises(TypeError):
        made = maker(type("Loose", (base,), {"__annotations__": {"z": "int"}}))  # not frozen
        dataclasses.fields(made)


def test_the_work_waits_for_the_first_use() -> None:
    made = point(_dataclass)
    assert not is_made(made)
    made(1)
    assert is_made(made)


def test_a_default_that_is_given_by_field_is_an_attribute_at_once() -> None:
    class Held:
        x: int = dataclasses.field(default=3, repr=False)

    assert is_made(_dataclass(Held)) and Held.x == 3


def test_an_own_init_stays() -> None:
    @_dataclass(eq=False)
    class Own:
        x: int

        def __init__(self) -> None:
            self.x = 7

    assert is_made(Own) and Own().x == 7


def test_two_threads_make_their_first_objects_at_once() -> None:
    for _ in range(50):
        made, start, found = point(_dataclass), threading.Barrier(4), []

        def work(made: Any = made, start: threading.Barrier = start, to: Any = found) -> None:
            start.wait()
            to.append(made(1))

        threads = [threading.Thread(target=work) for _ in range(4)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        assert found == [made(1)] * 4
