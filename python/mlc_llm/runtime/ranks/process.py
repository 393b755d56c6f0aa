"""A rank other than 0, as a process: `python -m mlc_llm.runtime.ranks.process SOCKET MEMORY`.

Both arguments are numbers of open files that it has from rank 0. It computes what rank 0 says and
answers nothing, but that it is ready, or why it cannot go on. It ends with rank 0, however that
ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from mlc_llm.backends.device import Device, RankSums
from mlc_llm.backends.ranks.meeting import Meeting
from mlc_llm.errors import EngineDead
from mlc_llm.library.metadata import BrokenLibrary
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.model_step import ModelStep
from mlc_llm.runtime.packed_file import BrokenParams, read_packed
from mlc_llm.runtime.ranks.all_reduce import adding
from mlc_llm.runtime.ranks.messages import STEP, json_message, received, step_of, tables_of
from mlc_llm.runtime.ranks.setup import RankSetup, tables_identity

LOOK_S = 1.0
"""An idle rank looks so often whether rank 0 lives. Usually the end of the socket says it; but a
process that was forked off rank 0 may hold the other end open."""


def main(link: socket.socket, memory: int) -> None:
    """All that the process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # rank 0 decides what Ctrl-C means
    first = received(link)
    if first is None:
        return
    setup = RankSetup.from_json(first)
    try:
        step, device, identity = _loaded(setup)
    except (BrokenLibrary, BrokenParams, MemoryError) as error:
        is_broken = not isinstance(error, MemoryError)
        words = str(error) or "there is too little memory"
        link.sendall(json_message({"error": words, "is_broken": is_broken}))
        return
    link.sendall(json_message({"ready": identity}))
    link.settimeout(LOOK_S)
    key = _next(link, setup)
    if key is None:
        return
    meeting = Meeting(memory, setup.rank, setup.shards, lambda: _check_parent(setup))
    sums = device.rank_sums(meeting, bytes.fromhex(json.loads(key)["key"]))
    with adding(sums):
        while (message := _next(link, setup)) is not None:
            _perform(step, message, sums)


def _loaded(setup: RankSetup) -> tuple[ModelStep, Device, object]:
    library = Library(Path(setup.library))
    packed = read_packed(Path(setup.weights))
    step = RankStep(library, packed, setup.limits(library.metadata), setup.window)
    return step, library.device, tables_identity(library.metadata)


class RankStep(ModelStep):
    """With some of the heads."""

    has_all_heads = False


def _next(link: socket.socket, setup: RankSetup) -> bytes | None:
    while True:
        try:
            return received(link)
        except TimeoutError:
            _check_parent(setup)


def _check_parent(setup: RankSetup) -> None:
    if os.getppid() != setup.parent:
        raise EngineDead("rank 0 has ended")


def _perform(step: ModelStep, message: bytes, sums: RankSums) -> None:
    tables = tables_of(message)
    kind, number = tables[0]
    if kind == STEP:
        step.outputs(step_of(tables))
        sums.end_step()
    else:
        step.copy_pages(number, tables[1], tables[2])


def _say(link: socket.socket, error: Exception) -> None:
    """The reason of an end, if anybody is there to read it."""
    try:
        link.sendall(json_message({"error": f"{type(error).__name__}: {error}"}))
    except OSError:
        print(f"a rank has ended: {error}", file=sys.stderr)


def run(arguments: list[str], leave: Callable[[int], None]) -> None:
    """leave: ends the process at once; nothing in it is to be saved."""
    link = socket.socket(fileno=int(arguments[0]))
    try:
        main(link, int(arguments[1]))
    except (Exception, KeyboardInterrupt) as error:
        if isinstance(error, Exception):
            _say(link, error)
        leave(1)
    leave(0)


if __name__ == "__main__":
    run(sys.argv[1:], os._exit)
