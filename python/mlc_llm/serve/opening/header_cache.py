"""The cache of model files' headers: with it, the next opening need not read all of a header.

A header holds each token and each merge as a text. To check them and to build tables of them takes
longer than everything else that is done with a model before it computes. The cache keeps where the
lists of texts end, and the vocabulary in flat form. Both are for a header of the same bytes (the
hash is compared each time) and for the same version of the code that reads headers.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.model_files.gguf import GGUFModel
from mlc_llm.plain_file import open_plain
from mlc_llm.record import record
from mlc_llm.support.content import FileState
from mlc_llm.support.kept import keep, kept, key_of
from mlc_llm.support.sources import hash_of_sources
from mlc_llm.tokenizers import Tokenizer
from mlc_llm.tokenizers.from_gguf import flat_form

_PACKAGE = Path(__file__).resolve().parent.parent.parent
_READERS = ("loader", "tokenizers")
_LEAD_BYTES = 1 << 16


class Head(NamedTuple):
    """What is known of a file whose header was read before."""

    passed: Mapping[int, int]
    """See `GGUFFile.open`."""
    vocabulary: memoryview | None
    """See `Tokenizer.from_flat`; None: the tokenizer has no flat form."""
    state: FileState
    """The state of the file, now that it has this header."""


@record()
class KeptGGUF(GGUFModel):
    """A model whose header is in the cache, or comes into it once its tokenizer is made."""

    head: Head | None = None
    """None: the cache has nothing of this header."""

    def tokenizer(self) -> Tokenizer:
        made = tokenizer_of(self.head, self.file) or super().tokenizer()
        if self.head is None:
            keep_head(self.file)
        return made


def open_with_head(path: Path) -> KeptGGUF:
    """A model by its first file, with what the cache has of the header.

    Raises what `GGUFFile.open` raises.
    """
    head = kept_head(path)
    gguf = GGUFFile.open(path, {} if head is None else head.passed)
    if head is None or head.state == FileState.of(gguf.opened[0][1]):
        return KeptGGUF(gguf, head=head)
    return KeptGGUF(GGUFFile.open(path))  # another file has taken its place between the two lines


def kept_head(path: Path) -> Head | None:
    """What the cache has of a file with the same header, in whatever folder that was."""
    try:
        with open_plain(path) as file:
            state = FileState.of(os.fstat(file.fileno()))
            data = kept(_name(state.size, file.read(_LEAD_BYTES)), _key())
            if data is None:
                return None
            (length,) = struct.unpack_from("<I", data)
            said = json.loads(bytes(data[4 : 4 + length]))
            file.seek(0)
            if sha256(file.read(said["bytes"])).hexdigest() != said["sha256"]:
                return None
        passed = {int(start): int(end) for start, end in said["passed"].items()}
        return Head(passed, data[4 + length :] or None, state)
    except (OSError, ValueError, KeyError, struct.error):
        return None


def keep_head(gguf: GGUFFile) -> None:
    """Put the header of a sound file into the cache, for `kept_head`."""
    flat = flat_form(gguf.metadata) if "tokenizer.ggml.model" in gguf.metadata else None
    header = sha256(gguf.beginning(gguf.header_bytes)).hexdigest()
    said = {"bytes": gguf.header_bytes, "sha256": header, "passed": dict(gguf.list_ends)}
    text = json.dumps(said).encode()
    name = _name(gguf.opened[0][1].st_size, gguf.beginning(_LEAD_BYTES))
    data = struct.pack("<I", len(text)) + text + (flat or b"")
    keep(name, _key(), data, f"vocabulary of {gguf.path.name}")


def tokenizer_of(head: Head | None, gguf: GGUFFile) -> Tokenizer | None:
    """The tokenizer in the cache; None if the cache has none."""
    if head is None or head.vocabulary is None:
        return None
    try:
        return Tokenizer.from_flat(head.vocabulary, gguf.metadata)
    except (ValueError, KeyError, TypeError, struct.error):
        return None


def _name(size: int, lead: bytes | memoryview) -> str:
    """Made of what is known before the header is read. Two files with the same name replace each
    other in the cache."""
    return f"header of {size} bytes that begin {sha256(lead).hexdigest()}"


def _key() -> str:
    return key_of(_readers_hash(), sys.byteorder)


@cache
def _readers_hash() -> str:
    """Hash of the source files that decide what is kept."""
    readers = hash_of_sources(_PACKAGE, _READERS)
    return sha256(readers.encode() + Path(__file__).read_bytes()).hexdigest()
