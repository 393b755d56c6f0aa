"""Where the processes of a model (ranks) meet: memory that they share.

Each rank has a word that counts how often it has come. Beside it lies a number that it brings, in
one of two places: while others still read the one, it writes the other. It cannot be two meetings
ahead, because it waits for every other rank in between.

Ranks that bring different numbers do not compute the same, so all of them raise.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable

from mlc_llm.backends.ranks.futex import Word
from mlc_llm.errors import EngineDead

LINE = 64
"""Bytes between two words: a line of the caches. Behind a word lie the numbers of its rank."""
NUMBER_BYTES = 8
PAGE = 4096
ROOM_BYTES = 1 << 20
"""Behind the words there is so much room for each rank, which is taken from the system when it is
first written."""
SPINS = 300
"""Looks at a word before the thread sleeps: some microseconds. A rank that is ready usually waits
for less."""
NAP_S = 0.05
"""After that long a waiting rank looks whether the others live."""
STALLED_S = 300.0
"""A rank that does not come for so long is given up."""
_COUNT = 2**32


def memory_bytes(shards: int) -> int:
    """Size of the shared memory."""
    return PAGE + shards * ROOM_BYTES


class Meeting:
    """One rank's side."""

    def __init__(self, file: int, rank: int, shards: int, check: Callable[[], None]) -> None:
        """file: the number of an open file of `memory_bytes`. check: is called now and then while
        the rank waits; raises EngineDead if another one does not live."""
        assert LINE * (shards + 1) <= PAGE, "words fill a page"
        self._memory = mmap.mmap(file, memory_bytes(shards))
        self.rank, self.shards, self._check = rank, shards, check
        self._words = [Word(self._memory, LINE * i) for i in range(shards)]
        self._ended = Word(self._memory, LINE * shards)
        self._numbers = memoryview(self._memory)[:PAGE].cast("Q")
        self.room = memoryview(self._memory)[PAGE:]
        """Memory that all ranks share for whatever they bring."""
        self._done = 0

    @property
    def turn(self) -> int:
        """0 or 1: what a rank writes before the next meeting may be read until the one after it."""
        return self._done % 2

    def give_up(self) -> None:
        """Make all ranks that wait, now or later, raise."""
        self._ended.write(1)
        for word in self._words:
            word.write(word.read())  # only wakes

    def look(self) -> None:
        """Raises `EngineDead` if the ranks were given up, or one does not live."""
        self._check()
        if self._ended.read():
            raise EngineDead("the ranks were given up")

    def come(self, number: int) -> None:
        """Bring a number, from 0 to 2^64 - 1."""
        self._numbers[_place(self.rank, self.turn)] = number
        self._done += 1
        self._words[self.rank].write(self._done % _COUNT)

    def wait_for(self, rank: int, does: Callable[[int], str]) -> None:
        """Return when a rank has come to the meeting that this one has come to, too. does: what a
        rank does that brings a number, in words. Raises `EngineDead`, also if it has brought
        another number."""
        self._wait(rank, self._done % _COUNT)
        turn = 1 - self.turn  # of this meeting, not of the next one
        found, own = (self._numbers[_place(one, turn)] for one in (rank, self.rank))
        if found != own:
            self.give_up()
            words = f"rank {rank} {does(found)}, and rank {self.rank} {does(own)}"
            raise EngineDead(f"{words}: they do not compute the same step")

    def meet(self, number: int, does: Callable[[int], str]) -> None:
        """Come, and wait for all others."""
        self.come(number)
        for rank in range(self.shards):
            if rank != self.rank:
                self.wait_for(rank, does)

    def _wait(self, rank: int, number: int) -> None:
        """Return when a rank has come for that time."""
        word = self._words[rank]
        for _ in range(SPINS):
            if _is_there(word.read(), number):
                return
        end = time.monotonic() + STALLED_S
        while not _is_there(found := word.read(), number):
            self.look()
            if time.monotonic() > end:
                raise EngineDead(f"rank {rank} has computed nothing for {STALLED_S:.0f} s")
            word.wait(found, NAP_S)


def _is_there(found: int, number: int) -> bool:
    """A word counts on from 0 behind 2^32 - 1, and is at most one ahead."""
    return (found - number) % _COUNT < _COUNT // 2


def _place(rank: int, turn: int) -> int:
    """Of a rank's number; in units of `NUMBER_BYTES`."""
    return LINE // NUMBER_BYTES * rank + 1 + turn


def shared_file(shards: int) -> int:
    """A file of zeros in memory without a name: it is gone when nobody has it open any more."""
    file = os.memfd_create("mlc-ranks")
    os.ftruncate(file, memory_bytes(shards))
    return file
