"""The two threads of a threaded engine: how they start, and how they end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping

JOIN_SECONDS = 30.0
"""How long `terminate` waits for each thread. A callback or the model may never return."""

_log = logging.getLogger(__name__)


class LoopThreads:
    """Starts both loops of an engine, which is given as a table of its functions.

    The threads refer to the functions and not to this object. So Python can collect this object
    while they run; then they end as by `terminate`. At the end of the program, `engine_calls` stops
    every engine.
    """

    def __init__(self, ffi: Mapping[str, Callable[..., object]]) -> None:
        self._terminated = False
        self._process = os.getpid()
        self._exit = ffi["exit_background_loop"]
        self._background_loop_thread = _thread("mlc-engine", ffi["run_background_loop"])
        self._background_stream_back_loop_thread = _thread(
            "mlc-stream-back", ffi["run_background_stream_back_loop"]
        )
        self._threads = (self._background_loop_thread, self._background_stream_back_loop_thread)
        try:
            for thread in self._threads:
                thread.start()
        except BaseException:
            self.terminate()
            raise

    def terminate(self) -> None:
        """End the loops and wait for their threads.

        It can be called again and from several threads. The stream callback's thread does not wait
        for itself, and the engine's waits for none: the other one waits for it. In a forked process
        there are no threads, and nothing happens.
        """
        if os.getpid() != self._process:
            return
        self._terminated = True
        self._exit()
        if threading.current_thread() is self._threads[0]:  # the garbage collector may be there
            return
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():
                continue
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                _log.error("%s did not end within %g s; left behind", thread.name, JOIN_SECONDS)

    def __del__(self) -> None:
        # The attribute is missing if the constructor failed at its first line.
        if not getattr(self, "_terminated", True):
            self.terminate()


def _thread(name: str, body: Callable[[], object]) -> threading.Thread:
    """A daemon thread: Python would wait for another kind before it stops the engines."""
    return threading.Thread(target=body, name=name, daemon=True)
