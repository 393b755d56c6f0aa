"""One line in the log when answers wait only because of the mode, which is easy to change."""

from __future__ import annotations

import logging

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.limits import sequences_of

_log = logging.getLogger(__name__)


class QueueNote:
    """Says once that answers wait; never if the caller chose how many run, or mode `server`."""

    def __init__(self, config: EngineConfig) -> None:
        mode, runs = config.mode, config.max_num_sequence
        self._mode, self._runs = mode, runs
        self.is_due = mode in ("local", "interactive") and runs == sequences_of(mode)
        """The line may still be written."""

    def look(self, num_running: int, num_waiting: int) -> None:
        """Write the line if answers wait in this step."""
        if self._runs is not None and num_running >= self._runs and num_waiting:
            self.is_due = False
            _log.warning(
                "%d answers run and %d wait: mode='%s' runs %d at a time; mode='server' runs more",
                *(num_running, num_waiting, self._mode, self._runs),
            )
