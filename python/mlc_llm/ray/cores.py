"""Cores of a node that only one replica computes on.

Ray counts processors and does not say which ones a replica has. So replicas agree by locks on files
of the node, which end with their process.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from mlc_llm.support.file_locks import file_lock, held_if_free
from mlc_llm.support.files import cache_root

_log = logging.getLogger(__name__)


class OwnCores:
    """Cores that no other replica has, until `release` or the end of the process."""

    def __init__(self, wanted: int, folder: Path | None = None) -> None:
        """wanted: if fewer are free, it has none, and a warning says so. folder: of the locks."""
        self._held = ExitStack()
        self.cores: frozenset[int] = frozenset()
        folder = folder or cache_root() / "cores"
        with file_lock(folder / "all"):  # two that take at once would get too few both
            found = self._free_ones(wanted, folder)
        if len(found) < wanted:
            self.release()
            words = "its threads compute on any core"
            _log.warning("a replica wants %d cores, and %d are free: %s", wanted, len(found), words)
        else:
            self.cores = frozenset(found)

    def release(self) -> None:
        """Let others have them."""
        self._held.close()
        self.cores = frozenset()

    def stay(self) -> None:
        """The calling thread, and all that it starts, compute on these cores only."""
        if self.cores and sys.platform == "linux":
            os.sched_setaffinity(0, self.cores)

    def _free_ones(self, wanted: int, folder: Path) -> list[int]:
        """The first ones: neighbours share caches and memory."""
        allowed = sorted(os.sched_getaffinity(0)) if sys.platform == "linux" else []
        found: list[int] = []
        for core in allowed:
            if len(found) < wanted and self._held.enter_context(
                held_if_free(folder / f"core-{core}")
            ):
                found.append(core)
        return found
