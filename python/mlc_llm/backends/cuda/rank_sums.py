"""Sums over ranks that have a GPU each: NCCL adds up in the order of the step.

A sum on a GPU waits for the other GPUs, and nothing on the GPU ends that if one of them does not
come: whoever then waits for the GPU, here or in the driver, waits for ever. So a thread looks
beside the one that computes, and aborts what cannot end.

NCCL does not see whether all ranks add up the same. So at the end of a step the processes meet, and
compare what they have asked for.
"""

from __future__ import annotations

import threading
import time
from math import prod

import tvm_ffi

from mlc_llm.backends.cuda.nccl import Communicator, load_nccl
from mlc_llm.backends.cuda.runtime import Runtime
from mlc_llm.backends.cuda.staging import current_stream
from mlc_llm.backends.ranks.meeting import STALLED_S, Meeting
from mlc_llm.errors import EngineDead, MLCError, one_line

LOOK_S = 0.1
"""The thread looks so often while a step is under way."""
_FACTOR, _MODULUS = 1_000_003, 2**61 - 1


class NcclSums:
    """See `backends.device.RankSums`."""

    def __init__(self, runtime: Runtime, meeting: Meeting, key: bytes) -> None:
        """Returns when all ranks have come. Raises EngineDead, DeviceFailed, UnusableDevice."""
        self._runtime, self._meeting, self._asked = runtime, meeting, 0
        ranks = meeting.rank, meeting.shards
        self._communicator = Communicator(load_nccl(), key, *ranks, meeting.look)
        self._watch = Watch(meeting, self._communicator)

    def add(self, x: tvm_ffi.Tensor, total: tvm_ffi.Tensor) -> None:
        count = prod(x.shape)
        assert str(x.dtype) == str(total.dtype) == "float32" and count == prod(total.shape)
        self._asked = (self._asked * _FACTOR + count) % _MODULUS
        self._watch.begin()
        addresses = x.data_ptr(), total.data_ptr()
        try:
            self._communicator.all_reduce(*addresses, count, current_stream())
        except MLCError as error:
            raise self._watch.reason(error) from error

    def end_step(self) -> None:
        asked, self._asked = self._asked, 0
        try:
            self._meeting.meet(asked, _does)
            self._runtime.wait(current_stream())
        except MLCError as error:
            raise self._watch.reason(error) from error
        self._watch.end()

    def close(self) -> None:
        self._watch.close()
        self._communicator.abort()


def _does(asked: int) -> str:
    """asked: a number for the sizes of all sums in their order."""
    return f"has asked for the sums {asked:016x}"


class Watch:
    """A thread that looks whether a step can still end."""

    def __init__(self, meeting: Meeting, communicator: Communicator) -> None:
        self._meeting, self._communicator = meeting, communicator
        self._since = 0.0
        self._is_busy, self._is_closed = threading.Event(), threading.Event()
        self._lost: str | None = None
        threading.Thread(target=self._run, name="mlc-llm-ranks", daemon=True).start()

    def begin(self) -> None:
        """A step waits for other ranks from now on. Nothing happens if it does already."""
        if not self._is_busy.is_set():
            self._since = time.monotonic()
            self._is_busy.set()

    def end(self) -> None:
        """The step has ended. Raises EngineDead if its sums were given up meanwhile."""
        self._is_busy.clear()
        if self._lost is not None:
            raise EngineDead(self._lost)

    def reason(self, error: MLCError) -> MLCError:
        """What has led to an error: what the thread has seen before, if it has."""
        return error if self._lost is None else EngineDead(self._lost)

    def close(self) -> None:
        """The thread ends."""
        self._is_closed.set()
        self._is_busy.set()

    def _run(self) -> None:
        while self._is_busy.wait() and not self._is_closed.wait(LOOK_S):
            if self._is_busy.is_set() and (why := self._why_lost()):
                self._lost = why
                self._meeting.give_up()
                self._communicator.abort()
                return

    def _why_lost(self) -> str | None:
        try:
            self._meeting.look()
            self._communicator.check()
        except MLCError as error:
            return one_line(error)
        if time.monotonic() - self._since > STALLED_S:
            return f"the GPUs have not ended a step in {STALLED_S:.0f} s"
        return None
