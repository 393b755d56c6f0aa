"""GGUF model files, versions 2 and 3: bounded, memory-mapped, nothing copied.

The file is not trusted: every count, length, offset and product is checked against its size
before use, so a broken file ends in one ModelFileError and costs neither time nor memory.
`gguf_cursor` reads fields, `gguf_metadata` and `gguf_tensors` the two tables, `gguf_split`
joins the parts of a split model.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

from mlc_llm.errors import ModelFileError
from mlc_llm.loader.gguf_metadata import Value
from mlc_llm.loader.gguf_split import Part, open_parts
from mlc_llm.loader.gguf_tensors import GGUFTensor

__all__ = ["GGUFFile", "GGUFTensor", "Value"]


class _Required:
    """Stands for "no default": a missing key is then an error."""


_REQUIRED: Final = _Required()
_D = TypeVar("_D")


class GGUFFile:
    """An opened model file.

    `metadata` decodes a value at its first use; strings keep bytes that are not UTF-8 as lone
    surrogates. The getters below check type and range and raise ModelFileError naming the key;
    without `default` a missing key is an error too.
    """

    def __init__(self, part: Part) -> None:
        self.path = part.path
        self.metadata: Mapping[str, Value] = part.metadata
        self.passed: Mapping[int, int] = part.metadata.passed
        """What makes opening this very file faster the next time."""
        self.tensors: Mapping[str, GGUFTensor] = part.tensors
        self.opened: tuple[tuple[Path, os.stat_result], ...] = part.opened
        """The files of the model, in order, as they were when they were opened."""
        self.header_bytes = part.header_bytes
        """Of the first file; what is behind them are tensors' values alone."""
        self._buffer = part.buffer

    @classmethod
    def open(cls, path: Path | str, passed: Mapping[int, int] = {}) -> GGUFFile:
        """Open the only file of a model, or the first of its parts.

        passed: what `passed` was when the file was opened before, and it has not changed since.
        Raises ModelNotFound (no such file), ModelFileError (broken), UnsupportedModel (a
        tensor type that is not supported).
        """
        return cls(open_parts(Path(path), passed))

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

    def get_float(
        self,
        key: str,
        default: float | _D | _Required = _REQUIRED,
        *,
        low: float | None = None,
        high: float | None = None,
    ) -> float | _D:
        """A finite number in low..high (both included)."""
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        if not isinstance(value, (int, float)) or isinstance(value, bool):
            self._fail(key, "a number")
        if not math.isfinite(value):
            self._fail(key, "a finite number")
        self._check_range(key, value, low, high)
        return float(value)

    def get_bool(self, key: str, default: bool | _D | _Required = _REQUIRED) -> bool | _D:
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        if not isinstance(value, bool):
            self._fail(key, "true or false")
        return value

    def get_str(self, key: str, default: str | _D | _Required = _REQUIRED) -> str | _D:
        """Text; here, unlike in `metadata`, bytes that are not UTF-8 are an error."""
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        if not isinstance(value, str) or not _is_unicode(value):
            self._fail(key, "UTF-8 text")
        return value

    def get_list(
        self, key: str, item: type, default: list[Any] | _D | _Required = _REQUIRED
    ) -> list[Any] | _D:
        """A list whose items are all of the Python type `item` (int, float, bool or str)."""
        if key not in self.metadata:
            if isinstance(default, _Required):
                self._missing(key)
            return default
        value = self.metadata[key]
        # items of one array share one type, so the first stands for all
        if not isinstance(value, list) or (value and type(value[0]) is not item):
            self._fail(key, f"a list of {item.__name__}")
        return value

    def _missing(self, key: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: metadata key {key} is missing")

    def _check_range(self, key: str, value: float, low: float | None, high: float | None) -> None:
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = [f"at least {low}"] * (low is not None) + [f"at most {high}"] * (
                high is not None
            )
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
