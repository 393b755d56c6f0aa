"""Opens a model library: its metadata and hashes are checked, then its code is linked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tvm_ffi

from mlc_llm.backends.registry import backend_of
from mlc_llm.library.metadata import METADATA_FILE, BrokenLibrary, Metadata
from mlc_llm.runtime.workspaces import Workspaces

if TYPE_CHECKING:
    from mlc_llm.backends.device import DeviceTensor

item: tvm_ffi.Function = tvm_ffi.get_global_func("ffi.ArrayGetItem")
"""`item(array, i)`. Iterating over a `tvm_ffi.Array` takes 30 us in each step, after the weights
have emptied the processor's caches; this takes 4."""


def read_metadata(folder: Path) -> Metadata:
    """Metadata of the library in `folder`, its files checked against the recorded hashes.

    Raises BrokenLibrary. Nothing is executed before the hashes agree.
    """
    try:
        metadata = Metadata.from_json((folder / METADATA_FILE).read_text(encoding="utf-8"))
        for name, recorded in metadata.sha256.items():
            if Path(name).name != name:
                raise BrokenLibrary(f"{folder}: {name!r} is not the name of a file in it")
            if hashlib.sha256((folder / name).read_bytes()).hexdigest() != recorded:
                raise BrokenLibrary(f"{folder / name} does not match its recorded hash")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BrokenLibrary(f"{folder}: {error}") from error
    return metadata


class Library:
    """The functions of a model library by name (see `library/signatures.py`), on their device."""

    def __init__(self, folder: Path) -> None:
        """Raises BrokenLibrary."""
        self.metadata = read_metadata(folder)
        try:
            self.device = backend_of(self.metadata.backend).device
        except KeyError as error:
            raise BrokenLibrary(f"{folder}: no kernels are called {error}") from error
        files = list(self.metadata.sha256)
        requires, ranks = self.metadata.requires, self.metadata.shards
        self._functions = self.device.link(folder, files, requires, ranks)
        self.workspaces = Workspaces(self.device)

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self._functions[name]

    def identity(self, *more: str) -> str:
        """A hash of the library's code, and of what else decides what is computed with it."""
        text = " ".join(filter(None, (self.metadata.to_json(), *more)))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def launches(self) -> int:
        """See `backends.device.Functions`."""
        return self._functions.launches

    def with_params(
        self,
        name: str,
        params: Sequence[DeviceTensor],
        tokens: int = 0,
        kept: Sequence[DeviceTensor] = (),
    ) -> Callable[..., Any]:
        """A function that takes weights, with these weights, and with its workspaces.

        tokens: of a step, at most. kept: the tensors of its KEPT arguments.
        """
        workspaces = self.workspaces.of(self.metadata.workspaces.get(name, ()), tokens)
        return self._functions.with_last(name, [*kept, *params, *workspaces])
