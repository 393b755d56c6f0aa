"""Reads the wire format of Protocol Buffers, with every length checked before use.

Format: https://protobuf.dev/programming-guides/encoding/. A field that a message has several times
gives several values.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from mlc_llm.errors import ModelFileError

Value = int | float | memoryview
"""A number (wire types 0 and 5), or the bytes of a text or a message (wire type 2)."""
_MOST_SHIFT = 63


class Message:
    """One message: its bytes, and its name for errors (`pieces[3]`)."""

    def __init__(self, data: memoryview, name: str) -> None:
        self._data, self.name = data, name

    def fields(self) -> Iterator[tuple[int, Value]]:
        """(number of the field, value) in order. Values of wire type 1 are passed over.

        Raises ModelFileError for a broken message.
        """
        at = 0
        while at < len(self._data):
            key, at = self._number(at)
            field, kind = key >> 3, key & 7
            if kind == 0:
                value, at = self._number(at)
                yield field, value
            elif kind == 5:
                at = self._end(at, 4, field)
                yield field, struct.unpack_from("<f", self._data, at - 4)[0]
            elif kind == 1:
                at = self._end(at, 8, field)
            elif kind == 2:
                length, at = self._number(at)
                end = self._end(at, length, field)
                yield field, self._data[at:end]
                at = end
            else:
                raise ModelFileError(f"{self.name}: field {field} has the wire type {kind}")

    def error(self, field: str, value: object, wanted: str) -> ModelFileError:
        """The error for a value that does not fit."""
        shown = bytes(value[:40]) if isinstance(value, memoryview) else value
        return ModelFileError(f"{self.name}.{field} = {shown!r} should be {wanted}")

    def text(self, field: str, value: Value) -> str:
        """A value as text. Raises ModelFileError."""
        try:
            return bytes(self.bytes(field, value)).decode()
        except UnicodeDecodeError:
            raise self.error(field, value, "text in UTF-8") from None

    def bytes(self, field: str, value: Value) -> memoryview:
        """A value as bytes. Raises ModelFileError."""
        if not isinstance(value, memoryview):
            raise self.error(field, value, "bytes")
        return value

    def number(self, field: str, value: Value) -> int:
        """A value as a signed 32-bit integer. Raises ModelFileError."""
        if not isinstance(value, int):
            raise self.error(field, value, "an integer")
        return (value & 0xFFFFFFFF ^ 0x80000000) - 0x80000000

    def float(self, field: str, value: Value) -> float:
        """A value as a finite number. Raises ModelFileError."""
        if not isinstance(value, float) or value - value != 0:
            raise self.error(field, value, "a finite number")
        return value

    def _end(self, at: int, length: int, field: int) -> int:
        if length > len(self._data) - at:
            rest = len(self._data) - at
            raise ModelFileError(
                f"{self.name}: field {field} should have {length} bytes, {rest} are left"
            )
        return at + length

    def _number(self, at: int) -> tuple[int, int]:
        """A number in the format "varint", and where it ends."""
        if at < len(self._data) and self._data[at] < 128:  # most numbers have one byte
            return self._data[at], at + 1
        value = shift = 0
        while at < len(self._data) and shift <= _MOST_SHIFT:
            byte = self._data[at]
            value |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                return value, at
        raise ModelFileError(f"{self.name}: a number is cut off at byte {at}")
