"""What folders of the cache are named by, and what those for the same model have in common.

Loads no NumPy: a command looks for its weights before anything heavy is imported.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

from mlc_llm.kernels.isa import Isa
from mlc_llm.support.files import cache_root

SHAPING_FOLDERS = ("kernels", "models", "compiler", "quantization")
"""Source folders whose every change makes libraries and packed weights anew."""
_PACKAGE = Path(__file__).resolve().parent.parent


def digest(value: Any) -> str:
    """A name for a value of plain data."""
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def weights_purpose(model: Path, isa: Isa) -> str:
    """What packed weights of a model file have in common of which the newer replace the older."""
    return digest({"file": str(model.resolve()), "half": isa.half, "fixed": isa.tiles})


def packed_folder() -> Path:
    """The folder of all packed weights, whether or not it exists yet. Raises CacheError."""
    return cache_root() / "model_weights" / "packed"


def weights_key(model: Path, isa: Isa) -> str:
    """Name of the packed weights' folder: a hash over what decides the layout, which is the file's
    identity, what the kernels want, and this code. Raises OSError."""
    parts = model.name.replace("-00001-of-", "-*-of-")
    files = sorted(model.resolve().parent.glob(parts)) or [model]
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    layout = {"half": isa.half, "fixed": isa.tiles, "source": source_hash()}
    return digest({"files": stats, **layout})


@cache
def source_hash() -> str:
    """Hash of the source files that decide what is compiled and how weights are laid out."""
    found = hashlib.sha256()
    for folder in SHAPING_FOLDERS:
        for file in sorted((_PACKAGE / folder).glob("*.py")):
            found.update(file.name.encode() + b"\0" + file.read_bytes())
    found.update((_PACKAGE / "model_lib.py").read_bytes())
    return found.hexdigest()
