"""The two threads of a threaded engine, and their end in every way a program can end."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

JOIN_SECONDS = 30.0
"""How long `terminate` waits for a thread, in case a callback or the model never returns."""

_log = logging.getLogger(__name__)


class LoopThreads:
    """Starts both loops of an engine, given as a table of its functions.

    The threads hold the functions and not this object, so it can be collected while they run: then
    they are ended as by `terminate`. When the program ends, so does every engine (`engine_calls`).
    """

    def __init__(self, ffi: Mapping[str, Callable[..., Any]]) -> None:
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
        """End the loops and wait for their threads. May be called again, from several threads,
        from the stream callback (which does not wait for itself) and in a forked process (which
        has no threads to end)."""
        if os.getpid() != self._process:
            return
        self._terminated = True
        self._exit()
        for thread in self._threads:
            if thread.ident is None or thread is threading.current_thread():
                continue
            thread.join(JOIN_SECONDS)
            if thread.is_alive():
                _log.error("%s did not end within %g s; left behind", thread.name, JOIN_SECONDS)

    def __del__(self) -> None:
        # False already when the constructor failed before anything was started.
        if not getattr(self, "_terminated", True):
            self.terminate()


def _thread(name: str, body: Callable[[], Any]) -> threading.Thread:
    """A daemon: the interpreter waits for other threads before it ends any engine."""
    return threading.Thread(target=body, name=name, daemon=True)
