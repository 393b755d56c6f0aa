"""The text that `help` shows about a config: its fields, their types, defaults and docstrings.

The docstring of a field is the string below it in the source of the class.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, Field
from typing import NamedTuple, TypeVar

T = TypeVar("T", bound=type)


class FieldDoc(NamedTuple):
    """One field of a config, as a reference page shows it."""

    name: str
    kind: str
    """The type, as the source writes it."""
    default: str
    text: str


def field_docs(cls: type) -> list[FieldDoc]:
    """The fields that a caller may give, in order. Raises OSError where there is no source."""
    (found,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    assert isinstance(found, ast.ClassDef)
    return [_field_doc(cls, node, text) for node, text in _annotated(found.body)]


def with_field_docs(cls: T) -> T:
    """Decorator: adds the fields to the `__doc__` of the class. They are read only when somebody
    asks for `__doc__`, so an import does not take longer."""
    cls.__doc__ = _Doc(inspect.cleandoc(cls.__doc__ or ""))  # type: ignore[assignment]
    return cls


class _Doc:
    def __init__(self, own: str) -> None:
        self._own = own

    def __get__(self, instance: object, owner: type) -> str:
        try:
            docs = field_docs(owner)
        except (OSError, TypeError, SyntaxError):  # no source here
            return self._own
        entries = [f"{d.name}: {d.kind} = {d.default}\n{_indented(d.text)}" for d in docs]
        return "\n\n".join([self._own, "Fields, with their types and defaults:", *entries])


def _annotated(body: list[ast.stmt]) -> Iterator[tuple[ast.AnnAssign, str]]:
    """The fields of a class body, each with the string behind it."""
    for i, node in enumerate(body):
        if isinstance(node, ast.If):  # `if TYPE_CHECKING:`
            yield from _annotated(node.body)
        if isinstance(node, ast.AnnAssign) and not _is_no_argument(node):
            yield node, _string(body[i + 1]) if i + 1 < len(body) else ""


def _is_no_argument(node: ast.AnnAssign) -> bool:
    written = ast.unparse(node)
    return "ClassVar[" in written or "init=False" in written


def _string(node: ast.stmt) -> str:
    is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return inspect.cleandoc(str(node.value.value)) if is_string else ""  # type: ignore[attr-defined]


def _field_doc(cls: type, node: ast.AnnAssign, text: str) -> FieldDoc:
    assert isinstance(node.target, ast.Name)
    name = node.target.id
    return FieldDoc(name, ast.unparse(node.annotation), _default(cls, name), text)


def _default(cls: type, name: str) -> str:
    """The default as Python writes it. An object that is made when it is first used shows as {}."""
    known: dict[str, object] = getattr(cls, "__dataclass_fields__", {})
    value = known.get(name, cls.__dict__.get(name))
    if isinstance(value, Field):
        value = value.default if value.default_factory is MISSING else value.default_factory()
    return "{}" if hasattr(value, "__get__") else repr(value)


def _indented(text: str) -> str:
    return textwrap.indent(text, "    ")
