"""`dataclass` of the standard library, applied to a class when the class is first used.

It writes the methods of a class as text and compiles them: a third of a millisecond for each class.
A start loads 140 of these classes, and makes objects of half of them.
"""

from __future__ import annotations

import dataclasses
import os
from threading import RLock

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dataclasses import dataclass
    from typing import Any

__all__ = ["dataclass"]

_FIELDS = "__dataclass_fields__"
_lock = RLock()


class _Later:
    """What stands for the fields of a class until somebody asks for them, or makes an object."""

    def __init__(self, made: type, options: dict[str, bool]) -> None:
        self._class, self._options = made, options

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        self.make()
        return getattr(self._class, _FIELDS)

    def make(self) -> None:
        """Apply `dataclasses.dataclass`, once."""
        with _lock:  # another thread may be about to make the first object too
            if vars(self._class).get(_FIELDS) is self:
                del self._class.__init__
                delattr(self._class, _FIELDS)
                dataclasses.dataclass(**self._options)(self._class)


def _dataclass(made: type | None = None, /, **options: bool) -> Any:
    """As `dataclasses.dataclass`."""
    if made is None:
        return lambda one: _dataclass(one, **options)
    if not _can_wait(made, options):
        return dataclasses.dataclass(**options)(made)
    later = _Later(made, options)

    def first(self: object, /, *args: object, **named: object) -> None:
        later.make()
        made.__init__(self, *args, **named)  # type: ignore[misc]

    setattr(made, _FIELDS, later)
    made.__init__ = first  # type: ignore[misc]
    return made


def _can_wait(made: type, options: dict[str, bool]) -> bool:
    """Nobody sees the difference. With slots, the class is made anew; where `field` gives a
    default, the class is to have it as its attribute."""
    return (
        "__init__" not in vars(made)
        and options.keys() <= {"frozen", "eq", "order", "kw_only"}
        and not any(
            isinstance(one, dataclasses.Field) and one.default is not dataclasses.MISSING
            for one in vars(made).values()
        )
    )


if not TYPE_CHECKING:
    dataclass = _dataclass

if hasattr(os, "register_at_fork"):  # a forked process finds no class half made
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release
    )
