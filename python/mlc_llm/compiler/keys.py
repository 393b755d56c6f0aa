"""Names of folders in the cache, and their purposes (see `support/superseded.py`).

This file does not import NumPy: a command looks for its weights before it imports large packages.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from mlc_llm.support.content import known_content
from mlc_llm.support.files import cache_root
from mlc_llm.support.sources import hash_of_sources

if TYPE_CHECKING:
    from mlc_llm.backends.base import Backend

SHAPING_FOLDERS = (
    "kernels", "models", "model_files", "compiler", "quantization", "backends", "library",
)  # fmt: skip
"""Source folders. After any change in them, libraries and packed weights are made again."""
_FIRST_PART = re.compile(r"(.+)-00001-of-(0[01]\d{3})\.gguf", re.IGNORECASE | re.DOTALL)
_PACKAGE = Path(__file__).resolve().parent.parent


def digest(value: object) -> str:
    """A name from plain data. What JSON cannot write counts by its `str`."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def weights_purposes(
    content: str, model: Path, backend: Backend, changes: str | None = None
) -> tuple[str, str]:
    """The purposes of packed weights. Newer weights replace older ones that share one of the two:
    the same content of the model, or the same path of its file."""
    layout = backend.weights_identity()
    if changes is not None:
        layout = {**layout, "changes": changes}
    same_file = digest({"file": str(model.resolve()), **layout})
    return digest({"content": content, **layout}), same_file


def packed_folder() -> Path:
    """The folder of all packed weights. It may not exist yet. Raises CacheError."""
    return cache_root() / "model_weights" / "packed"


def weights_key(content: str, backend: Backend) -> str:
    """Name of the folder of packed weights. It is a hash of all that decides their bytes: the model
    (`content`, from `model_content`), the layout of the kernels, and this source code."""
    layout = {**backend.weights_identity(), "source": source_hash()}
    return digest({"content": content, **layout})


def model_content(hashes: Iterable[str], changes: str | None = None) -> str:
    """Name of a model from the hashes of its files, in order, and from what is changed when they
    are read (`ModelFiles.changes`). Paths do not matter."""
    return digest([*hashes, *([] if changes is None else [f"as {changes}"])])


def known_weights(model: Path, backend: Backend) -> Path | None:
    """The folder of a model's packed weights, which may not exist. model: its first file. None if
    the cache does not know the hashes of its files. Takes milliseconds. Raises OSError,
    CacheError."""
    found = [known_content(path) for path in _files(model)]
    hashes = [one.hash for one in found if one is not None]
    if len(hashes) < len(found):
        return None
    return packed_folder() / weights_key(model_content(hashes), backend)


def _files(model: Path) -> list[Path]:
    """All files of a model: the parts of a split one, by the name of the first; else the file."""
    part = _FIRST_PART.fullmatch(model.name)
    if part is None:
        return [model]
    numbers = range(1, int(part[2]) + 1)
    return [model.with_name(f"{part[1]}-{n:05d}-of-{part[2]}.gguf") for n in numbers]


@cache
def source_hash(folders: tuple[str, ...] = SHAPING_FOLDERS) -> str:
    """Hash of source files; of those that decide what is compiled and how weights are packed, if
    no other folders of the package are given ("" is all of it)."""
    return hash_of_sources(_PACKAGE, folders)
