"""Sums over all ranks, through memory that they share.

Each rank has a word that counts what it has put into the memory, and two places to put it: while
others still read the one, it fills the other. It cannot be two sums ahead, because it reads from
every other rank in between. All ranks add in the order of the ranks, so all have the same bits.

Beside its word a rank says how many numbers the sum has, once for each of the two places.
Ranks that add up different things do not fit together, so all of them raise. The end of a step is a
sum of no numbers: so ranks that add up more or fewer things than others raise, too.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import EngineDead
from mlc_llm.runtime.ranks.futex import Word

Floats = npt.NDArray[np.float32]
PIECE = 1 << 17
"""Numbers that are added at once: with two ranks 2 MB of shared memory, which caches hold."""
LINE = 64
"""Bytes between two words: a line of the caches. Behind a word lie the sizes of its rank."""
SIZE_BYTES = 8
PAGE = 4096
SPINS = 300
"""Looks at a word before the thread sleeps: some microseconds. A rank that is ready usually waits
for less."""
NAP_S = 0.05
"""After that long a waiting rank looks whether the others live."""
STALLED_S = 300.0
"""A rank that puts nothing into the memory for so long is given up."""
END = 0
"""The size of the sum that ends a step."""
_COUNT = 2**32
_NOTHING: Floats = np.empty(0, np.float32)


def memory_bytes(shards: int) -> int:
    """Size of the shared memory."""
    return PAGE + 2 * shards * 4 * PIECE


class Sums:
    """What one rank does."""

    def __init__(self, file: int, rank: int, shards: int, check: Callable[[], None]) -> None:
        """file: the number of an open file of `memory_bytes`. check: is called now and then while
        the rank waits; raises if another one does not live."""
        assert LINE * (shards + 1) <= PAGE, "words fill a page"
        self._memory = mmap.mmap(file, memory_bytes(shards))
        self._rank, self._shards, self._check = rank, shards, check
        self._words = [Word(self._memory, LINE * i) for i in range(shards)]
        self._ended = Word(self._memory, LINE * shards)
        self._sizes = memoryview(self._memory)[:PAGE].cast("Q")
        places: Floats = np.frombuffer(self._memory, np.float32, offset=PAGE)
        self._places = places.reshape(2, shards, PIECE)
        self._done = 0

    def give_up(self) -> None:
        """Make all ranks that wait, now or later, raise."""
        self._ended.write(1)
        for word in self._words:
            word.write(word.read())  # only wakes

    def add(self, x: Floats, total: Floats) -> None:
        """total = the sum of all ranks' x. Raises `EngineDead`, in all ranks if they have different
        numbers of numbers."""
        x, total = x.reshape(-1), total.reshape(-1)
        for start in range(0, len(x), PIECE):
            self._add_piece(x[start : start + PIECE], total[start : start + PIECE], len(x))

    def end_step(self) -> None:
        """Return when all ranks have ended the step. Raises `EngineDead`, in all ranks if one of
        them wants another sum."""
        self._add_piece(_NOTHING, _NOTHING, END)

    def _add_piece(self, x: Floats, total: Floats, size: int) -> None:
        place, count = self._done % 2, len(x)
        places = self._places[place]
        places[self._rank, :count] = x
        self._sizes[_size_at(self._rank, place)] = size
        self._done += 1
        number = self._done % _COUNT
        self._words[self._rank].write(number)
        for rank in range(self._shards):
            if rank != self._rank:
                self._wait(rank, number)
                self._check_size(rank, place, size)
            part = x if rank == self._rank else places[rank, :count]
            if rank == 0:
                first = part
            else:
                np.add(first, part, out=total)
                first = total

    def _check_size(self, rank: int, place: int, size: int) -> None:
        found = self._sizes[_size_at(rank, place)]
        if found != size:
            self.give_up()
            words = f"rank {rank} {_does(found)}, and rank {self._rank} {_does(size)}"
            raise EngineDead(f"{words}: they do not compute the same step")

    def _wait(self, rank: int, number: int) -> None:
        """Return when a rank has put in what bears this number."""
        word = self._words[rank]
        for _ in range(SPINS):
            if _is_there(word.read(), number):
                return
        end = time.monotonic() + STALLED_S
        while not _is_there(found := word.read(), number):
            self._check()
            if self._ended.read():
                raise EngineDead("the ranks were given up")
            if time.monotonic() > end:
                raise EngineDead(f"rank {rank} has computed nothing for {STALLED_S:.0f} s")
            word.wait(found, NAP_S)


def _does(size: int) -> str:
    return "has ended its step" if size == END else f"adds {size} numbers"


def _is_there(found: int, number: int) -> bool:
    """A word counts on from 0 behind 2^32 - 1, and is at most one ahead."""
    return (found - number) % _COUNT < _COUNT // 2


def _size_at(rank: int, place: int) -> int:
    """Where a rank says how many numbers a sum has; in units of `SIZE_BYTES`."""
    return LINE // SIZE_BYTES * rank + 1 + place


def shared_file(shards: int) -> int:
    """A file of zeros in memory without a name: it is gone when nobody has it open any more."""
    file = os.memfd_create("mlc-ranks")
    os.ftruncate(file, memory_bytes(shards))
    return file


def arrays(*tensors: Any) -> list[Floats]:
    """The memory of tensors of a CPU."""
    found: list[Any] = [np.from_dlpack(one) for one in tensors]
    return found
