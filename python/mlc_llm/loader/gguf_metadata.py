"""The key-value metadata of a GGUF file: checked when it is opened, decoded at first use.

Format: the "Metadata" part of the GGUF specification, versions 2 and 3.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

from mlc_llm.loader.gguf_cursor import MAX_KEY_BYTES, Cursor, printable

Value: TypeAlias = (
    "int | float | bool | str | list[int] | list[float] | list[bool] | list[str] | list[Value]"
)
"""A value of the metadata. All items of a list have one type."""

_NUMBERS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
"""Types of numbers, as `struct` calls them."""
UINT32, _BOOL, _STRING, _ARRAY = 4, 7, 8, 9
_MIN_BYTES = {_BOOL: 1, _STRING: 8, _ARRAY: 12} | {
    kind: struct.calcsize(f"<{name}") for kind, name in _NUMBERS.items()
}
_MAX_NESTING = 4
_NESTED_COST = 64  # checking an array inside an array takes as long as this many strings
MIN_ENTRY_BYTES = 8 + 1 + 4 + 1  # key length, key, type, value


class Entry(NamedTuple):
    """A checked value: its type number, and the byte where it starts."""

    type: int
    pos: int


class RawEntry(NamedTuple):
    """A value as it stands in a file: its type number and its bytes."""

    type: int
    value: bytes


class Metadata(Mapping[str, Value]):
    """A read-only mapping. A value is decoded at its first use and then kept. Bytes of strings that
    are not UTF-8 become lone surrogates ("surrogateescape")."""

    def __init__(self, cursor: Cursor, entries: dict[str, Entry]) -> None:
        self._cursor = cursor
        self._entries = entries
        self._decoded: dict[str, Value] = {}

    def __getitem__(self, key: str) -> Value:
        if key not in self._decoded:
            entry = self._entries[key]
            self._decoded[key] = _decode(self._cursor.at(entry.pos), entry.type)
        return self._decoded[key]

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def list_ends(self) -> dict[int, int]:
        """For each list of strings: the byte where it starts -> the byte where it ends."""
        return self._cursor.list_ends

    def raw(self, key: str) -> RawEntry:
        """The value of `key`, for a copy of it in another file."""
        entry = self._entries[key]
        cursor = self._cursor.at(entry.pos)
        cursor.list_ends.update(self.list_ends)
        _skip(cursor, entry.type, key, depth=0)
        return RawEntry(entry.type, bytes(cursor.buffer[entry.pos : cursor.pos]))

    def type_of(self, key: str) -> int | None:
        """The type number of `key` in the file; None if there is no such key."""
        entry = self._entries.get(key)
        return None if entry is None else entry.type


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    """Check `count` entries and note where each starts. The cursor ends after the last one."""
    entries: dict[str, Entry] = {}
    for index in range(count):
        key = _read_key(cursor, f"metadata key {index}")
        if key in entries:
            cursor.fail(f"metadata key {printable(key)} occurs twice")
        what = f"metadata value {printable(key)}"
        entry = Entry(cursor.u32(f"type of {what}"), cursor.pos)
        _skip(cursor, entry.type, what, depth=0)
        entries[key] = entry
    return Metadata(cursor, entries)


def _read_key(cursor: Cursor, what: str) -> str:
    raw = cursor.string(what, MAX_KEY_BYTES)
    if not raw:
        cursor.fail(f"{what} is empty")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        cursor.fail(f"{what} {printable(raw)} is not UTF-8")


def _skip(cursor: Cursor, kind: int, what: str, depth: int) -> None:
    """Check one value and skip it, without allocating memory."""
    if kind in _NUMBERS:
        cursor.take(_MIN_BYTES[kind], what)
    elif kind == _BOOL:
        _skip_bools(cursor, 1, what)
    elif kind == _STRING:
        cursor.skip_string(what)
    elif kind == _ARRAY:
        _skip_array(cursor, what, depth + 1)
    else:
        cursor.fail(f"{what} has the unknown type {kind}")


def _skip_array(cursor: Cursor, what: str, depth: int) -> None:
    if depth > _MAX_NESTING:
        cursor.fail(f"{what} nests arrays more than {_MAX_NESTING} deep")
    kind = cursor.u32(f"item type of {what}")
    if kind not in _MIN_BYTES:
        cursor.fail(f"{what} has items of the unknown type {kind}")
    cost = _NESTED_COST if kind == _ARRAY else 1
    count = cursor.array_items(f"number of items of {what}", _MIN_BYTES[kind], cost)
    if kind in _NUMBERS:
        cursor.take(count * _MIN_BYTES[kind], what)
    elif kind == _BOOL:
        _skip_bools(cursor, count, what)
    elif kind == _STRING:
        cursor.skip_strings(count, what)
    else:
        for _ in range(count):
            _skip_array(cursor, what, depth + 1)


def _skip_bools(cursor: Cursor, count: int, what: str) -> None:
    start = cursor.take(count, what)
    if cursor.buffer[start : start + count].strip(b"\0\1"):
        cursor.fail(f"{what} is a truth value other than 0 and 1")


def _decode(cursor: Cursor, kind: int) -> Value:
    """The value at the cursor, which `_skip` has checked before."""
    if kind == _STRING:
        return cursor.strings(1)[0]
    if kind == _ARRAY:
        return _decode_array(cursor)
    return _numbers(cursor, kind, 1)[0]


def _decode_array(cursor: Cursor) -> list[str] | list[Value]:
    kind = cursor.u32("item type")
    count = cursor.u64("number of items")
    if kind == _STRING:
        return cursor.strings(count)
    if kind == _ARRAY:
        inner: list[Value] = [_decode_array(cursor) for _ in range(count)]
        return inner
    return _numbers(cursor, kind, count)


def _numbers(cursor: Cursor, kind: int, count: int) -> list[Value]:
    start = cursor.take(count * _MIN_BYTES[kind], "numbers")
    name = "?" if kind == _BOOL else _NUMBERS[kind]
    return list(struct.unpack_from(f"<{count}{name}", cursor.buffer, start))
