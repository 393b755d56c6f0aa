"""Records behave as frozen dataclasses do."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import pytest

from mlc_llm.record import record


def classes(of: Callable[..., Any]) -> dict[str, Any]:
    """Some classes, made by `of`."""

    @of()
    class Plain:
        """Two numbers and a list."""

        one: int
        two: float = 0.5
        many: list[int] = field(default_factory=list)

        @cached_property
        def total(self) -> float:
            return self.one + self.two

    @of()
    class Child(Plain):
        """One more."""

        last: str = "end"

    @of(kw_only=True)
    class Named:
        """Names alone."""

        left: int
        right: int = 2
        unseen: int = field(default=3, compare=False, repr=False)

    @of()
    class Mixed:
        """A place and a name."""

        place: int
        name: int = field(kw_only=True, default=1)
        kept: list[int] = field(init=False, default_factory=list)

        def __post_init__(self) -> None:
            self.kept.append(self.place)

    @of()
    class Empty:
        """Nothing."""

    @of()
    class Own:
        """Has its own methods."""

        value: int

        def __repr__(self) -> str:
            return "own"

        def __hash__(self) -> int:
            return 7

    return {one.__name__: one for one in (Plain, Child, Named, Mixed, Empty, Own)}


def frozen(**how: bool) -> Any:
    """What a record should be like."""
    return dataclass(frozen=True, **how)


RECORDS, DATACLASSES = classes(record), classes(frozen)
CALLS: list[tuple[str, tuple[object, ...], dict[str, Any]]] = [
    ("Plain", (1,), {}),
    ("Plain", (1, 2.5), {"many": [3]}),
    ("Plain", (), {"one": 4}),
    ("Child", (1, 2.0, [3], "x"), {}),
    ("Child", (1,), {"last": "y"}),
    ("Named", (), {"left": 1}),
    ("Named", (), {"left": 1, "right": 3, "unseen": 9}),
    ("Mixed", (1,), {"name": 2}),
    ("Empty", (), {}),
    ("Own", (1,), {}),
]


@record()
class Kept:
    """A record that pickle can find."""

    value: int
    texts: tuple[str, ...] = ()


@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_a_record_looks_like_a_frozen_dataclass(
    name: str, args: tuple[object, ...], named: dict[str, Any]
) -> None:
    ours, theirs = RECORDS[name](*args, **named), DATACLASSES[name](*args, **named)
    assert asdict(ours) == asdict(theirs)
    assert repr(ours) == repr(theirs)
    assert RECORDS[name].__match_args__ == DATACLASSES[name].__match_args__
    assert ours == RECORDS[name](*args, **named)
    assert ours != theirs
    parameters = [inspect.signature(one[name]).parameters for one in (RECORDS, DATACLASSES)]
    shown = [[(one.name, one.kind, one.annotation) for one in some.values()] for some in parameters]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(("name", "args", "named"), CALLS)
def test_no_field_can_be_set_or_deleted(
    name: str, args: tuple[object, ...], named: dict[str, Any]
) -> None:
    ours = RECORDS[name](*args, **named)
    for one in [*(one.name for one in fields(ours)), "other"]:
        with pytest.raises(FrozenInstanceError, match=f"assign to field '{one}'"):
            setattr(ours, one, 1)
        with pytest.raises(FrozenInstanceError, match=f"delete field '{one}'"):
            delattr(ours, one)


@pytest.mark.parametrize("made", [RECORDS, DATACLASSES])
def test_wrong_arguments_are_named(made: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"Plain.__init__\(\) missing 1 .* argument: 'one'"):
        made["Plain"]()
    with pytest.raises(TypeError, match="unexpected keyword argument 'three'"):
        made["Plain"](1, three=3)
    with pytest.raises(TypeError, match="takes 1 positional argument but 2 were given"):
        made["Named"](1)


def test_equal_records_have_one_hash_and_unequal_ones_differ() -> None:
    named = RECORDS["Named"]
    assert hash(named(left=1)) == hash(named(left=1, unseen=4))
    assert named(left=1) == named(left=1, unseen=4)
    assert named(left=1) != named(left=2)
    assert RECORDS["Child"](1) != RECORDS["Plain"](1)
    assert hash(RECORDS["Own"](1)) == 7
    with pytest.raises(TypeError, match="unhashable"):
        hash(RECORDS["Plain"](1))


def test_records_of_no_equality_are_equal_to_themselves_alone() -> None:
    @record(eq=False)
    class One:
        """Equal to itself."""

        value: int

    one = One(1)
    assert one != One(1)
    assert len({one, One(1)}) == 2


def test_records_are_replaced_copied_and_pickled() -> None:
    one = Kept(1, texts=("a",))
    assert replace(one, value=2) == Kept(2, ("a",))
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert dataclasses.is_dataclass(one)
    match one:
        case Kept(value, texts):
            assert (value, texts) == (1, ("a",))


def test_what_is_computed_once_is_no_field() -> None:
    one, other = RECORDS["Plain"](1), RECORDS["Plain"](1)
    assert one.total == 1.5
    assert one == other
    assert "total" not in repr(one)


def test_each_object_has_its_own_list() -> None:
    one, other = RECORDS["Plain"](1), RECORDS["Plain"](1)
    one.many.append(1)
    assert other.many == []
