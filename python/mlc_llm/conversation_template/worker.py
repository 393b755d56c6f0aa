"""The process that renders a template of unknown origin, as the parent sees it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlc_llm.conversation_template import sandbox
from mlc_llm.conversation_template.sandbox import Answer, Task
from mlc_llm.errors import MLCError

START_SECONDS = 30.0
_START = """
import importlib.util, sys
sys.path += sys.argv[2:]
spec = importlib.util.spec_from_file_location("sandbox", sys.argv[1])
sandbox = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sandbox)
sandbox.serve(sys.stdin.buffer, sys.stdout.buffer)
"""


class TimeIsUp(Exception):
    """The worker was killed because it took too long."""


class WorkerDied(Exception):
    """The worker ended without an answer (out of memory, killed from outside)."""


class Worker:
    """One template in one process. Only one thread may use it at a time.

    It belongs to the process that started it. In a fork of that process it is not alive, and
    `close` does not touch the parent's worker.
    """

    def __init__(self, source: str) -> None:
        """Start the process. Raises `TimeIsUp`, `WorkerDied`, `MLCError`."""
        self._process = subprocess.Popen(
            [_python(), "-I", "-S", "-c", _START, sandbox.__file__, *_library_folders()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,  # a buffer has a lock, which a fork may copy while it is held
        )
        self._owner = os.getpid()
        self.close = weakref.finalize(self, _end, self._process, self._owner)
        self._ask(source, START_SECONDS)

    @property
    def is_alive(self) -> bool:
        is_mine = self._owner == os.getpid()
        return is_mine and self.close.alive and self._process.poll() is None

    def render(self, values: Mapping[str, object], seconds: float) -> Answer:
        """The worker's answer. After `TimeIsUp` or `WorkerDied` the worker has ended."""
        # The worker's own alarm is later than ours, so that ours always comes first.
        task: Task = {"values": values, "seconds": seconds + 1}
        answer: Answer = self._ask(task, seconds)
        return answer

    def _ask(self, message: object, seconds: float) -> Any:
        late, process = threading.Event(), self._process

        def kill() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            answer = self._exchange(message)
        except BaseException:  # for example Ctrl-C: the next call must not read this answer
            self.close()
            raise
        finally:
            timer.cancel()
        if answer is None:
            self.close()
            raise TimeIsUp if late.is_set() else WorkerDied
        return answer

    def _exchange(self, message: object) -> Any:
        """Send a message and read the next one. None if the process ended meanwhile."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            sandbox.write_message(self._process.stdin, message)
            return sandbox.read_message(self._process.stdout)
        except (OSError, ValueError):  # a pipe is closed, for example because the program ends
            return None


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:  # in a fork: the worker is the parent's and may be working
        process.returncode = 0  # so that nobody waits: the worker is no child of this process
        return
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):  # unsent bytes cannot be sent any more
                pipe.close()


def _python() -> str:
    if not sys.executable:
        raise MLCError(
            "chat templates need a Python program to run in, and sys.executable is empty"
        )
    return sys.executable


def _library_folders() -> list[str]:
    """The folders of the libraries that the worker imports. It uses no other folders."""
    folders = []
    for name in ("jinja2", "markupsafe"):
        spec = importlib.util.find_spec(name)
        assert spec is not None and spec.origin is not None  # imported by the sandbox
        folders.append(str(Path(spec.origin).parent.parent))
    return list(dict.fromkeys(folders))
