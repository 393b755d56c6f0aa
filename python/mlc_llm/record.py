"""`record`: a frozen dataclass whose class is made in a fraction of the time.

`dataclass(frozen=True)` writes six methods for each class and compiles them. With 140 classes this
was a fourth of the time until a command computes. Of a record only `__init__` is compiled; the
other methods are shared. `fields`, `replace`, `asdict` and `match` work as with any dataclass.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter

TYPE_CHECKING = False  # `typing` takes longer to load than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any, NoReturn, TypeVar

    from typing_extensions import dataclass_transform

    T = TypeVar("T")
else:

    def dataclass_transform(**how: object) -> object:
        """Only type checkers need it."""
        return lambda function: function


_MADE = object()
"""Stands for a default that is made for each object."""


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(*, eq: bool = True, kw_only: bool = False) -> Callable[[type[T]], type[T]]:
    """Make a class a record. A method that the class has of its own is left to it.

    eq: two of them are equal if their fields are; otherwise each is equal to itself alone.
    kw_only: `__init__` takes names alone. All bases with fields must be records too.
    """

    def make(cls: type[T]) -> type[T]:
        own = set(cls.__dict__)
        dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
        every = fields(cls)  # type: ignore[arg-type]
        methods = {"__repr__": _repr, "__setattr__": _set, "__delattr__": _delete}
        methods["__init__"] = _init(cls, every)
        if eq:
            cls._compared = _values([one.name for one in every if one.compare])  # type: ignore[attr-defined]
            methods |= {"__eq__": _equal, "__hash__": _hash}
        for name, method in methods.items():
            if name not in own:
                setattr(cls, name, method)
        return cls

    return make


def _init(cls: type, every: Sequence[Field[Any]]) -> Callable[..., None]:
    """`__init__` of a class with these fields, compiled."""
    scope: dict[str, Any] = {"_put": object.__setattr__, "_made": _MADE}
    places = [one for one in every if not one.kw_only]
    names = [one for one in every if one.kw_only]
    head = ["self", *(_parameter(one, scope) for one in places if one.init)]
    head += ["*", *(_parameter(one, scope) for one in names if one.init)] if names else []
    body = [line for one in every if (line := _line(one, scope))]
    body += ["self.__post_init__()"] if hasattr(cls, "__post_init__") else []
    exec(f"def __init__({', '.join(head)}):\n " + "\n ".join(body or ["pass"]), scope)
    made: Callable[..., None] = scope["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = {one.name: one.type for one in every if one.init}
    return made


def _parameter(one: Field[Any], scope: dict[str, Any]) -> str:
    if one.default is MISSING and one.default_factory is MISSING:
        return one.name
    scope[f"_default_{one.name}"] = _MADE if one.default is MISSING else one.default
    return f"{one.name}=_default_{one.name}"


def _line(one: Field[Any], scope: dict[str, Any]) -> str:
    value = one.name
    if one.default_factory is not MISSING:
        scope[f"_make_{one.name}"] = one.default_factory
        value = f"_make_{one.name}()"
        value += f" if {one.name} is _made else {one.name}" if one.init else ""
    elif not one.init:
        return ""
    return f"_put(self, {one.name!r}, {value})"


def _values(names: Sequence[str]) -> Callable[[Any], object]:
    """Of an object: the attributes of these names."""
    return attrgetter(*names) if names else staticmethod(lambda one: ())


def _equal(self: Any, other: object) -> Any:
    values = self._compared
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self is other or values(self) == values(other)


def _hash(self: Any) -> int:
    return hash(self._compared(self))


def _repr(self: Any) -> str:
    shown = (f"{one.name}={getattr(self, one.name)!r}" for one in fields(self) if one.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"


def _set(self: Any, name: str, value: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delete(self: Any, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")
