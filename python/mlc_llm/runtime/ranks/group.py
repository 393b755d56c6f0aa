"""Rank 0's side: the other ranks as processes, and the step that they compute together."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from mlc_llm.backends.ranks.meeting import STALLED_S, Meeting, shared_file
from mlc_llm.errors import EngineDead, MLCError, one_line
from mlc_llm.library.metadata import BrokenLibrary, Metadata
from mlc_llm.runtime.library import Library
from mlc_llm.runtime.limits import RunnerLimits, Window
from mlc_llm.runtime.model_step import MakeStep, ModelStep
from mlc_llm.runtime.packed_file import BrokenParams, Packed
from mlc_llm.runtime.ranks.all_reduce import adding
from mlc_llm.runtime.ranks.messages import copy_message, json_message, received, step_message
from mlc_llm.runtime.ranks.setup import RankSetup, tables_identity
from mlc_llm.runtime.step_inputs import StepNumbers

if TYPE_CHECKING:
    import tvm_ffi

    from mlc_llm.backends.device import Device, DeviceTensor, RankSums, Table

LOOK_S = 0.2
"""While the others load, rank 0 looks so often whether they live."""
END_S = 2.0
"""A rank that is told to end has so long; then it is killed."""
_log = logging.getLogger(__name__)


class _Rank:
    """Another rank."""

    def __init__(self, setup: RankSetup, memory: int) -> None:
        self.number, self._error, self._ending = setup.rank, "", threading.Lock()
        self.link, other = socket.socketpair()
        with other:
            files = (other.fileno(), memory)
            self.process = subprocess.Popen(
                [sys.executable, "-m", "mlc_llm.runtime.ranks.process", *map(str, files)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=files,
                env={**os.environ, **setup.environment},
            )
        self.link.settimeout(LOOK_S)
        self.send(json_message(setup.to_dict()))

    def send(self, message: bytes) -> None:
        """Raises OSError if it has ended, or reads nothing."""
        self.link.settimeout(STALLED_S)
        self.link.sendall(message)

    def answer(self) -> dict[str, object] | None:
        """The next thing that it says; None: nothing so far. Raises OSError if it has ended."""
        self.link.settimeout(LOOK_S)
        try:
            message = received(self.link)
        except TimeoutError:
            return None
        if message is None:
            raise ConnectionResetError
        found: dict[str, object] = json.loads(message)
        self._error = str(found.get("error", ""))
        return found

    def has_failed(self) -> bool:
        """A rank that fails gives the others up, and then says why: so it has a moment for that."""
        with self._ending, suppress(OSError, ValueError):
            self.answer()
        return bool(self._error) or self.process.poll() is not None

    def why_ended(self) -> str:
        """In words, of a rank that has ended or does not answer."""
        with self._ending, suppress(OSError, ValueError):  # two threads may ask
            self.answer()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(LOOK_S)
        code, words = self.process.returncode, f"rank {self.number} (process {self.process.pid})"
        if self._error:
            return f"{words} failed: {self._error}"
        if code is None:
            return f"{words} does not answer"
        if code < 0:
            return f"{words} was ended by {signal.Signals(-code).name}"
        return f"{words} ended with code {code}"


class RankGroup:
    """The other ranks of a model. One thread at a time."""

    def __init__(self, setups: Sequence[RankSetup]) -> None:
        """setups: of the other ranks, in order. They begin to load at once. Raises `MLCError`."""
        ranks: list[_Rank] = []
        sums: list[RankSums] = []
        shards, memory = len(setups) + 1, shared_file(len(setups) + 1)
        self.lost: str | None = None
        """Why nothing can be computed any more."""
        self._ranks, self._sums = ranks, sums
        try:
            self._meeting = Meeting(memory, 0, shards, lambda: _check_alive(ranks))
            self.close = weakref.finalize(self, _end, ranks, self._meeting, sums)
            """Ends the other ranks; at the latest when nobody has the group any more."""
            for setup in setups:
                ranks.append(_Rank(setup, memory))
        except OSError as error:
            self.close()
            raise MLCError(f"the ranks of the model do not start: {one_line(error)}") from error
        finally:
            os.close(memory)

    def wait_ready(self, metadata: Metadata) -> None:
        """Return when all ranks have loaded what they compute with. metadata: of rank 0's library.
        Raises BrokenLibrary or BrokenParams for what building again mends, `MLCError`."""
        for rank in self._ranks:
            try:
                while (said := rank.answer()) is None:
                    _check_alive(self._ranks)
            except (OSError, EngineDead):
                raise MLCError(rank.why_ended()) from None
            if "ready" not in said:
                words = f"rank {rank.number}: {said['error']}"
                raise BrokenParams(words) if said["is_broken"] else MLCError(words)
            if said["ready"] != json.loads(json.dumps(tables_identity(metadata))):
                raise BrokenLibrary(f"the library of rank {rank.number} is of another model")

    def join(self, device: Device) -> None:
        """Return when this process can add up with all others. device: of rank 0. Raises
        `MLCError`."""
        key = device.rank_key()
        self.send(json_message({"key": key.hex()}))
        try:
            self._sums.append(device.rank_sums(self._meeting, key))
        except EngineDead as error:
            raise MLCError(str(error)) from error

    def send(self, message: bytes) -> None:
        """Tell all ranks. Raises `EngineDead`."""
        if self.lost is not None:
            raise EngineDead(self.lost)
        for rank in self._ranks:
            try:
                rank.send(message)
            except OSError:
                raise self._lose(rank.why_ended()) from None

    @contextmanager
    def computing(self) -> Iterator[None]:
        """What this thread computes is added up with what the others compute. If that fails, the
        ranks do not fit together any more. Raises `EngineDead`."""
        (sums,) = self._sums
        try:
            with adding(sums):
                yield
            sums.end_step()
        except BaseException as error:
            failed = [one for one in self._ranks if one.has_failed()]
            why = failed[0].why_ended() if failed else f"a step has failed: {one_line(error)}"
            raise self._lose(why) from error

    def _lose(self, why: str) -> EngineDead:
        self.lost = f"{why}; the model has to be opened again"
        _log.error("%s", self.lost)
        self.close()
        return EngineDead(self.lost)


def _check_alive(ranks: Sequence[_Rank]) -> None:
    for rank in ranks:
        if rank.process.poll() is not None:
            raise EngineDead(rank.why_ended())


def _end(ranks: Sequence[_Rank], meeting: Meeting, sums: Sequence[RankSums]) -> None:
    """End the other ranks, and wait for that."""
    meeting.give_up()
    for one in sums:
        one.close()
    for rank in ranks:
        rank.link.close()
    for rank in ranks:
        try:
            rank.process.wait(END_S)
        except subprocess.TimeoutExpired:
            rank.process.kill()
            rank.process.wait()


class SharedStep(ModelStep):
    """The step of rank 0, which the other ranks compute as well."""

    has_all_heads = False

    def __init__(
        self,
        group: RankGroup,
        library: Library,
        packed: Packed,
        limits: RunnerLimits,
        window: Window | None,
    ) -> None:
        """Raises what `ModelStep` and `RankGroup.wait_ready` raise."""
        super().__init__(library, packed, limits, window)
        group.wait_ready(library.metadata)
        group.join(library.device)
        self._group = group

    def outputs(
        self, numbers: StepNumbers, more: Sequence[Table] = (), *, drafts: bool = False
    ) -> tuple[tvm_ffi.Array, list[DeviceTensor]]:
        assert not drafts, "ranks have no EAGLE head"
        self._group.send(step_message(numbers))
        with self._group.computing():
            return super().outputs(numbers, more)

    def copy_pages(self, group: int, source: Sequence[int], target: Sequence[int]) -> None:
        self._group.send(copy_message(group, source, target))
        super().copy_pages(group, source, target)


def start_ranks(setups: Sequence[RankSetup]) -> tuple[RankGroup, MakeStep]:
    """The other ranks, and what makes the step of rank 0. Raises `MLCError`."""
    group = RankGroup(setups)
    return group, partial(SharedStep, group)
