"""Reads little-endian GGUF fields from a memory-mapped file.

Every read first checks that its bytes are inside the file. So a hostile length can neither allocate
memory nor start a long loop. All limits are defined here; real files stay far below them.
"""

from __future__ import annotations

import errno
import mmap
import os
import struct
from pathlib import Path
from typing import NoReturn

from mlc_llm.errors import ModelFileError, ModelNotFound
from mlc_llm.plain_file import open_plain

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
    """A name from a file, shortened and quoted, so that a one-line message can show it."""
    text = raw if isinstance(raw, str) else raw.decode("utf-8", "backslashreplace")
    return ascii(text if len(text) <= 80 else text[:77] + "...")


class Cursor:
    """A position in one mapped file. Errors of the format are raised by `fail` alone.

    The mapping stays open as long as anything refers to it. Nobody may shorten the file meanwhile:
    the system answers a read after its new end with a signal, not with an error.
    """

    def __init__(self, path: Path, buffer: mmap.mmap, stat: os.stat_result | None = None) -> None:
        self.path = path
        self.stat = stat
        """The state of the mapped file. Another file may have taken its path since."""
        self.list_ends: dict[int, int] = {}
        """Byte where a list of strings starts -> byte where it ends. `skip_strings` has checked
        these lists, now or in an earlier opening of this file."""
        self.buffer = buffer
        self.pos = 0
        self.size = len(buffer)
        self.end = min(self.size, MAX_HEADER_BYTES)
        self._items_left = MAX_ARRAY_ITEMS

    @classmethod
    def open(cls, path: Path) -> Cursor:
        """Map `path` read-only.

        Raises ModelNotFound (no such file), ModelFileError (cannot be read), MemoryError (no room).
        """
        try:
            with open_plain(path) as file:
                # mmap cannot map an empty file
                if not file.read(1):
                    raise ModelFileError(f"{path}: the file is empty")
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                return cls(path, mapped, os.fstat(file.fileno()))
        except (FileNotFoundError, IsADirectoryError):
            raise ModelNotFound(f"{path}: no such file") from None
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
        """Skip `count` bytes and return where they start."""
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
        """Read a u64: the number of items that follow, each at least `item_bytes` long."""
        value = self.u64(what)
        if value > limit:
            self.fail(f"{what} is {value}; at most {limit} are allowed")
        if value * item_bytes > self.end - self.pos:
            self._fail_short(f"{what} is {value}, which")
        return value

    def array_items(self, what: str, item_bytes: int, cost: int = 1) -> int:
        """Read the length of an array. All arrays of the file share one budget of items; this
        array takes `cost` times its length from it."""
        value = self.count(what, self._items_left // cost, item_bytes)
        self._items_left -= value * cost
        return value

    def string(self, what: str, limit: int = MAX_STRING_BYTES) -> bytes:
        start, end = self.skip_string(what, limit)
        return self.buffer[start:end]

    def skip_string(self, what: str, limit: int = MAX_STRING_BYTES) -> tuple[int, int]:
        """Skip a string and return where its bytes start and end."""
        length = self.count(f"length of {what}", limit, 1)
        return self.take(length, what), self.pos

    def skip_strings(self, count: int, what: str) -> None:
        """Skip `count` strings and check that they are inside the file. A vocabulary has 250,000
        of them, so the loop calls as little as possible."""
        start = self.pos
        if start in self.list_ends:
            self.take(self.list_ends[start] - start, what)
            return
        pos, end, buffer, read = self.pos, self.end, self.buffer, _U64.unpack_from
        for index in range(count):
            if pos + 8 > end:
                self._fail_short(f"{what}[{index}]")
            pos += 8 + read(buffer, pos)[0]
            if pos > end:
                self._fail_short(f"{what}[{index}]")
        self.pos = self.list_ends[start] = pos

    def strings(self, count: int) -> list[str]:
        """Decode strings that `skip_strings` has checked.

        Bytes that are not UTF-8 become lone surrogates ("surrogateescape"), so no byte is lost.
        """
        pos, buffer, read = self.pos, self.buffer, _U64.unpack_from
        out = []
        for _ in range(count):
            start = pos + 8
            pos = start + read(buffer, pos)[0]
            out.append(buffer[start:pos].decode("utf-8", "surrogateescape"))
        self.pos = pos
        return out
