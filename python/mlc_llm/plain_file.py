"""Opens files that others wrote. Only regular ones: a pipe would be waited for, a device has no
end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO, cast

_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""To open a pipe does not wait. For a regular file that changes nothing."""
_PIECE = 1 << 20


def open_plain(path: Path) -> BinaryIO:
    """A file, open for reading without a buffer. Raises OSError, also for what is no regular
    file."""
    try:
        number = os.open(path, _FLAGS)
    except ValueError:  # a name with a zero byte
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)) from None
    mode = os.fstat(number).st_mode
    if not stat.S_ISREG(mode):
        os.close(number)
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return cast(BinaryIO, os.fdopen(number, "rb", buffering=0))


def read_plain(path: Path, most: int) -> bytes:
    """All bytes of a file. Raises OSError as `open_plain`, and for more than `most` bytes."""
    pieces, left = [], most + 1
    with open_plain(path) as file:
        if os.fstat(file.fileno()).st_size <= most:
            while left and (piece := file.read(min(left, _PIECE))):  # it may grow meanwhile
                pieces.append(piece)
                left -= len(piece)
            if left:
                return b"".join(pieces)
    raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))


def reason(error: OSError | ValueError | RecursionError) -> str:
    """Why a file cannot be used, without its path."""
    return getattr(error, "strerror", None) or str(error)
