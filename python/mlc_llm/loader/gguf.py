"""Reads GGUF model files, versions 2 and 3. Files are memory-mapped; nothing is copied.

The reader does not trust the file: it checks every count, length, offset and product against the
file's size before use. So a broken file raises one `ModelFileError`, quickly and without taking
memory. `gguf_cursor` reads fields, `gguf_metadata` and `gguf_tensors` read the two tables,
`gguf_split` joins the parts of a split model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.gguf_metadata import Value
from mlc_llm.loader.gguf_split import Part, open_parts
from mlc_llm.loader.gguf_tensors import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor", "Value"]


class _Required:
    """Means "no default": then a missing key is an error."""


_REQUIRED: Final = _Required()
_D = TypeVar("_D")


class GGUFFile:
    """An opened model file.

    `metadata` decodes a value at its first use. Bytes of strings that are not UTF-8 become lone
    surrogates. The getters below check type and range and raise a `ModelFileError` that names the
    key. Without `default`, a missing key is an error too.
    """

    def __init__(self, part: Part) -> None:
        self.path = part.path
        self.metadata = part.metadata
        self.list_ends: Mapping[int, int] = part.metadata.list_ends
        """For each list of strings in the header: the byte where it starts -> the byte where it
        ends. With these numbers `open` is faster the next time."""
        self.tensors: Mapping[str, GGUFTensor] = part.tensors
        self.opened: tuple[tuple[Path, os.stat_result], ...] = part.opened
        """The files of the model in order, each with its state when it was opened."""
        self.header_bytes = part.header_bytes
        """Size of the first file's header. Only values of tensors follow it."""
        self._buffer = part.buffer

    @classmethod
    def open(cls, path: Path | str, list_ends: Mapping[int, int] = {}) -> GGUFFile:
        """Open the only file of a model, or the first of its parts.

        list_ends: the attribute `list_ends` from an earlier opening, if the file has not changed
        since. Raises ModelNotFound (no such file), ModelFileError (broken file), UnsupportedModel
        (a tensor type that is not supported).
        """
        return cls(open_parts(Path(path), list_ends))

    def beginning(self, count: int) -> memoryview:
        """The first bytes of the first file, at most `count`."""
        return memoryview(self._buffer)[:count]

    def get_int(
        self,
        key: str,
        default: int | _D | _Required = _REQUIRED,
        *,
        low: int | None = None,
        high: int | None = None,
    ) -> int | _D:
        """A whole number in low..high (both included)."""
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        if not isinstance(value, int) or isinstance(value, bool):
            self._fail(key, "a whole number")
        self._check_range(key, value, low, high)
        return value

    def get_str(self, key: str, default: str | _D | _Required = _REQUIRED) -> str | _D:
        """Text. Unlike in `metadata`, bytes that are not UTF-8 are an error."""
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        if not isinstance(value, str) or not _is_unicode(value):
            self._fail(key, "UTF-8 text")
        return value

    def _missing(self, key: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: metadata key {key} is missing")

    def _check_range(self, key: str, value: int, low: int | None, high: int | None) -> None:
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = [f"at least {low}"] if low is not None else []
            bounds += [f"at most {high}"] if high is not None else []
            self._fail(key, " and ".join(bounds))

    def _fail(self, key: str, allowed: str) -> NoReturn:
        shown = repr(self.metadata[key])
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        raise ModelFileError(f"{self.path}: metadata key {key} = {shown} must be {allowed}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
