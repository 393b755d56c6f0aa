"""What folders of the cache are named by, and what those for the same model have in common.

Loads no NumPy: a command looks for its weights before anything heavy is imported.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from mlc_llm.backends.base import Backend
from mlc_llm.support.content import known_content
from mlc_llm.support.files import cache_root

SHAPING_FOLDERS = ("kernels", "models", "compiler", "quantization", "backends", "library")
"""Source folders whose every change makes libraries and packed weights anew."""
_FIRST_PART = re.compile(r"(.+)-00001-of-(0[01]\d{3})\.gguf", re.IGNORECASE | re.DOTALL)
_PACKAGE = Path(__file__).resolve().parent.parent


def digest(value: Any) -> str:
    """A name for a value of plain data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def weights_purposes(content: str, model: Path, backend: Backend) -> tuple[str, str]:
    """What packed weights of which the newer replace the older have in common: either they are of
    the same model, or the newer one took the older one's place as a file."""
    layout = backend.weights_identity()
    same_file = digest({"file": str(model.resolve()), **layout})
    return digest({"content": content, **layout}), same_file


def packed_folder() -> Path:
    """The folder of all packed weights, whether or not it exists yet. Raises CacheError."""
    return cache_root() / "model_weights" / "packed"


def weights_key(content: str, backend: Backend) -> str:
    """Name of the packed weights' folder: a hash over what decides what is in it, which is the
    model (`model_content`), what the kernels want, and this code."""
    layout = {**backend.weights_identity(), "source": source_hash()}
    return digest({"content": content, **layout})


def model_content(hashes: Iterable[str]) -> str:
    """Names a model by the hashes of its files, in order: wherever they are, and however called."""
    return digest(list(hashes))


def known_weights(model: Path, backend: Backend) -> Path | None:
    """Where the packed weights of a model would be, of which nothing but the name of its first
    file is known; None if finding that out takes more than milliseconds. Raises OSError,
    CacheError."""
    found = [known_content(path) for path in _files(model)]
    hashes = [one.hash for one in found if one is not None]
    if len(hashes) < len(found):
        return None
    return packed_folder() / weights_key(model_content(hashes), backend)


def _files(model: Path) -> list[Path]:
    """The parts of a split model beside its first one; of any other, the file."""
    part = _FIRST_PART.fullmatch(model.name)
    if part is None:
        return [model]
    numbers = range(1, int(part[2]) + 1)
    return [model.with_name(f"{part[1]}-{n:05d}-of-{part[2]}.gguf") for n in numbers]


@cache
def source_hash() -> str:
    """Hash of the source files that decide what is compiled and how weights are laid out."""
    found = hashlib.sha256()
    for folder in SHAPING_FOLDERS:
        for file in sorted((_PACKAGE / folder).rglob("*.py")):
            found.update(file.relative_to(_PACKAGE).as_posix().encode() + b"\0" + file.read_bytes())
    return found.hexdigest()
