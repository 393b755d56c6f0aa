"""Bounded reading of little-endian GGUF fields out of a memory-mapped file.

Every read first checks that its bytes are inside the file, so a hostile length can neither
allocate memory nor start a long loop. Limits stand here, once; all are far above real files.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import NoReturn

from mlc_llm.errors import ModelFileError, ModelNotFound

MAX_KEYS = 4_096
MAX_KEY_BYTES = 1_024
MAX_TENSORS = 32_768
MAX_TENSOR_NAME_BYTES = 128
MAX_STRING_BYTES = 32 * 2**20  # the largest real values are embedded tokenizer files
MAX_ARRAY_ITEMS = 4 * 2**20  # of all arrays in a file together; a 256k vocabulary has 0.9 M
MAX_HEADER_BYTES = 256 * 2**20

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


def printable(raw: bytes | str) -> str:
    """A name out of a file, cut and quoted so that it is safe in a one-line message."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
    return ascii(text if len(text) <= 80 else text[:77] + "...")


class Cursor:
    """A position in one mapped file. `fail` is the only way reading ends badly.

    The mapping stays open as long as anything refers to it; the file must not be shortened
    meanwhile (the system answers reads behind a moved end with a signal, not an error).
    """

    def __init__(self, path: Path, buffer: mmap.mmap, stat: os.stat_result | None = None) -> None:
        self.path = path
        self.stat = stat
        """Of the file that is mapped, which another may have replaced at `path`."""
        self.passed: dict[int, int] = {}
        """Where strings one after the other start, and where they end: of those that
        `skip_strings` has checked, now or when this very file was opened before."""
        self.buffer = buffer
        self.pos = 0
        self.size = len(buffer)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self._items_left = MAX_ARRAY_ITEMS

    @classmethod
    def open(cls, path: Path) -> Cursor:
        """Map `path` read-only.

        ModelNotFound: no such file; ModelFileError: cannot be read; MemoryError: no room for it.
        """
        if not path.is_file():
            raise ModelNotFound(f"{path}: no such file")
        try:
            with path.open("rb") as file:
                # the check saves mmap from the empty file, which it cannot map
                if not file.read(1):
                    raise ModelFileError(f"{path}: the file is empty")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return cls(path, mapped, os.fstat(file.fileno()))
        except OSError as error:
            if error.errno == errno.ENOMEM:
                raise MemoryError(f"{path} cannot be mapped") from error
            raise ModelFileError(f"{path}: cannot be read: {error.strerror}") from error

    def at(self, pos: int) -> Cursor:
        """A second cursor over the same bytes, for values decoded later."""
        other = Cursor(self.path, self.buffer)
        other.pos = pos
        return other

    def fail(self, what: str) -> NoReturn:
        raise ModelFileError(f"{self.path}: {what}")

    def _fail_short(self, what: str) -> NoReturn:
        if self.end < self.size:
            self.fail(f"{what} lies behind the first {MAX_HEADER_BYTES >> 20} MiB (header too big)")
        self.fail(f"{what} lies beyond the end of the file ({self.size} bytes): truncated?")

    def take(self, count: int, what: str) -> int:
        """Step over `count` bytes and return where they start."""
        start = self.pos
        if count > self.end - start:
            self._fail_short(what)
        self.pos = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.buffer, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.buffer, self.take(8, what))[0]
        return value

    def count(self, what: str, limit: int, item_bytes: int) -> int:
        """A u64 count of things that follow, each at least `item_bytes` long."""
        value = self.u64(what)
        if value > limit:
            self.fail(f"{what} is {value}; at most {limit} are allowed")
        if value * item_bytes > self.end - self.pos:
            self._fail_short(f"{what} is {value}, which")
        return value

    def array_items(self, what: str, item_bytes: int, cost: int = 1) -> int:
        """The length of an array, taken `cost` times from the budget that all arrays of the
        file share."""
        value = self.count(what, self._items_left // cost, item_bytes)
        self._items_left -= value * cost
        return value

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> bytes:
        start, end = self.skip_string(what, limit)
        return self.buffer[start:end]

    def skip_string(self, what: str, limit: int = MAX_STRING_BYTES) -> tuple[int, int]:
        """Step over a string and return where its bytes start and end."""
        length = self.count(f"length of {what}", limit, 1)
        return self.take(length, what), self.pos

    def skip_strings(self, count: int, what: str) -> None:
        """Step over `count` strings. A plain loop: a vocabulary has a quarter of a million."""
        start = self.pos
        if start in self.passed:
            self.take(self.passed[start] - start, what)
            return
        pos, end, buffer, read = self.pos, self.end, self.buffer, _U64.unpack_from
        for index in range(count):
            if pos + 8 > end:
                self._fail_short(f"{what}[{index}]")
            pos += 8 + read(buffer, pos)[0]
            if pos > end:
                self._fail_short(f"{what}[{index}]")
        self.pos = self.passed[start] = pos

    def strings(self, count: int) -> list[str]:
        """Decode strings that `skip_strings` has passed.

        Bytes that are not UTF-8 become lone surrogates ("surrogateescape"), so nothing is lost.
        """
        pos, buffer, read = self.pos, self.buffer, _U64.unpack_from
        out = []
        for _ in range(count):
            start = pos + 8
            pos = start + read(buffer, pos)[0]
            out.append(buffer[start:pos].decode("utf-8", "surrogateescape"))
        self.pos = pos
        return out
