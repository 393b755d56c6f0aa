"""Reading packed weights on threads, while the rest of an engine is imported and made."""

from __future__ import annotations

from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from mlc_llm.library.metadata import PARAMS_FILE
from mlc_llm.runtime.packed_file import Packed, ReadWeights, read_packed

if TYPE_CHECKING:
    from types import TracebackType


class ReadAhead:
    """The weights whose reading has begun, by folder.

    It belongs to whoever begins to read, who gives it to those that open the model. It is a context
    manager: at the end of the `with` it drops the weights that nobody has taken. One thread at a
    time may use it.
    """

    def __init__(self, read: ReadWeights | None = None) -> None:
        """read: gives the weights of a folder; `read_packed` if it is None."""
        self._read = read or read_packed
        self._begun: dict[Path, _Reading] = {}

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._begun.clear()

    def begin(self, folder: Path, free: int) -> None:
        """Begin to read a folder's weights, if at most half of the free memory goes into them.

        free: bytes of free memory. Nothing happens if the reading has begun before. Raises OSError
        if the folder has no weights.
        """
        if (folder / PARAMS_FILE).stat().st_size <= free // 2 and folder not in self._begun:
            self._begun[folder] = _Reading(self._read, folder)
            self._begun[folder].start()

    def take(self, folder: Path) -> Packed:
        """A folder's weights, once they are read; if no reading has begun, they are read now.

        What is taken is not kept here. Raises BrokenParams, MemoryError.
        """
        reading = self._begun.pop(folder, None)
        return self._read(folder) if reading is None else reading.result()


class _Reading(Thread):
    """One folder's weights, or the error that came instead."""

    def __init__(self, read: ReadWeights, folder: Path) -> None:
        super().__init__(name="mlc-read-params", daemon=True)
        self._read, self._folder = read, folder
        self._packed: Packed | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._packed = self._read(self._folder)
        except BaseException as error:  # raised where the result is wanted
            self._error = error

    def result(self) -> Packed:
        """Wait for the weights."""
        self.join()
        if self._error is not None:
            raise self._error
        assert self._packed is not None
        return self._packed
