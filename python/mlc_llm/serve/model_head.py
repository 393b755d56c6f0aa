"""What is kept of a model file's header, so that the next opening need not read all of it.

A header has each token and each merge as a text of its own: to check them and to build tables of
them takes longer than everything else that is done with a model before it computes. Kept are where
the lists of texts end, and the vocabulary in flat form, for the file as it is now (path, size and
time) and for this version of the code that reads it.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.support.kept import keep, kept, key_of
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.from_gguf import flat_form

_PACKAGE = Path(__file__).resolve().parent.parent
_READERS = ("loader", "tokenizers")


class Head(NamedTuple):
    """Of a file that was opened before and has not changed."""

    passed: Mapping[int, int]
    """For `GGUFFile.open`."""
    vocabulary: memoryview | None
    """For `Tokenizer.from_flat`."""


def kept_head(path: Path) -> Head | None:
    """What was kept of a model file, if it is still the same."""
    try:
        data = kept(*_name_and_key(path))
        if data is None:
            return None
        (length,) = struct.unpack_from("<I", data)
        passed = json.loads(bytes(data[4 : 4 + length]))
        return Head({int(k): int(v) for k, v in passed.items()}, data[4 + length :] or None)
    except (OSError, ValueError, struct.error):
        return None


def keep_head(gguf: GGUFFile) -> None:
    """Keep what `kept_head` gives, of a file that was found sound."""
    flat = flat_form(gguf.metadata) if "tokenizer.ggml.model" in gguf.metadata else None
    passed = json.dumps(dict(gguf.passed)).encode()
    data = struct.pack("<I", len(passed)) + passed + (flat or b"")
    keep(*_name_and_key(gguf.path), data)


def tokenizer_of(head: Head | None, gguf: GGUFFile) -> Tokenizer | None:
    """The tokenizer out of what was kept; None if that has none."""
    if head is None or head.vocabulary is None:
        return None
    try:
        return Tokenizer.from_flat(head.vocabulary, gguf.metadata)
    except (ValueError, KeyError, TypeError, struct.error):
        return None


def _name_and_key(path: Path) -> tuple[str, str]:
    stat = path.stat()
    key = key_of(stat.st_size, stat.st_mtime_ns, _readers_hash(), sys.byteorder)
    return f"head of {path.resolve()}", key


@cache
def _readers_hash() -> str:
    """Of the source files that decide what is kept."""
    digest = sha256(Path(__file__).read_bytes())
    for folder in _READERS:
        for file in sorted((_PACKAGE / folder).glob("*.py")):
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
