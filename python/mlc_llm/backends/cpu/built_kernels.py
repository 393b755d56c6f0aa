"""The kernels of libraries that are there already: an equal one need not be compiled again.

A kernel's object file is named by all that decides what is in it. So a library for another setting
or of a newer version compiles only what differs.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mlc_llm.library.metadata import METADATA_FILE
from mlc_llm.support.files import files_below


def kernel_file(name: str, *content: str) -> str:
    """The object file of a kernel. content: its text, and what it is compiled for and with."""
    digest = hashlib.sha256("\0".join(content).encode())
    return f"kernels.{name}.{digest.hexdigest()[:32]}.o"


class BuiltKernels:
    """Of all libraries in a folder; None: there are none."""

    def __init__(self, libraries: Path | None) -> None:
        self._paths: dict[str, list[Path]] = {}
        for path in () if libraries is None else files_below(libraries):
            if path.match("kernels.*.o"):
                self._paths.setdefault(path.name, []).append(path)

    def take(self, file: str, folder: Path) -> bool:
        """Copies an object file into `folder`, if any library has it as it was written."""
        for path in self._paths.get(file, ()):
            try:
                code = path.read_bytes()
                recorded = json.loads((path.parent / METADATA_FILE).read_bytes())["sha256"][file]
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it is being written or removed, or it is broken
            if hashlib.sha256(code).hexdigest() == recorded:
                (folder / file).write_bytes(code)
                return True
        return False
