"""Reading packed parameters on a thread, while the rest of an engine is imported and made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock, Thread

from mlc_llm.runtime.packed_file import Packed, read_packed

_begun: dict[Path, _Reading] = {}
_lock = Lock()


class _Reading(Thread):
    """One folder's parameters, or the error that came instead."""

    def __init__(self, folder: Path) -> None:
        super().__init__(name="mlc-read-params", daemon=True)
        self._folder = folder
        self._packed: Packed | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._packed = read_packed(self._folder)
        except BaseException as error:  # raised where the result is wanted
            self._error = error

    def result(self) -> Packed:
        """Wait for it."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._packed is not None
        return self._packed


def begin_reading(folder: Path) -> None:
    """Start reading what `packed_of` will be asked for, once."""
    reading = _Reading(folder)
    with _lock:
        if folder in _begun:
            return
        _begun[folder] = reading
    reading.start()


def packed_of(folder: Path) -> Packed:
    """As `read_packed`, which it is where no reading was begun. Raises BrokenParams."""
    with _lock:
        reading = _begun.pop(folder, None)
    return read_packed(folder) if reading is None else reading.result()


@contextmanager
def readings_dropped() -> Iterator[None]:
    """Forget at the end what was begun within and that nobody has asked for."""
    with _lock:
        before = set(_begun)
    try:
        yield
    finally:
        with _lock:
            for folder in set(_begun) - before:
                del _begun[folder]
