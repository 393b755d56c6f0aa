"""Sums over all ranks, through memory that they share.

While others still read what a rank has put into one place, it fills the other one. All ranks add in
the order of the ranks, so all have the same bits. A rank brings to the meeting how many numbers the
sum has. The end of a step is a sum of no numbers: so ranks that add up more or fewer things than
others raise, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import tvm_ffi

from mlc_llm.backends.ranks.meeting import ROOM_BYTES, Meeting

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

Floats: TypeAlias = "npt.NDArray[np.float32]"
PIECE = ROOM_BYTES // 2 // 4
"""Numbers that are added at once: with two ranks 2 MB of shared memory, which caches hold."""
END = 0
"""The size of the sum that ends a step."""


class SharedSums:
    """See `backends.device.RankSums`."""

    def __init__(self, meeting: Meeting) -> None:
        self._meeting = meeting
        places: Floats = np.frombuffer(meeting.room, np.float32)
        self._places = places.reshape(2, meeting.shards, PIECE)
        self._nothing: Floats = np.empty(0, np.float32)

    def add(self, x: tvm_ffi.Tensor, total: tvm_ffi.Tensor) -> None:
        self.add_arrays(*_arrays(x, total))

    def add_arrays(self, x: Floats, total: Floats) -> None:
        """The same, of memory in one piece."""
        x, total = x.reshape(-1), total.reshape(-1)
        for start in range(0, len(x), PIECE):
            self._add_piece(x[start : start + PIECE], total[start : start + PIECE], len(x))

    def end_step(self) -> None:
        self._add_piece(self._nothing, self._nothing, END)

    def close(self) -> None:
        """The memory goes with the last one who has it."""

    def _add_piece(self, x: Floats, total: Floats, size: int) -> None:
        meeting, count = self._meeting, len(x)
        places = self._places[meeting.turn]
        places[meeting.rank, :count] = x
        meeting.come(size)
        for rank in range(meeting.shards):
            if rank != meeting.rank:
                meeting.wait_for(rank, _does)
            part = x if rank == meeting.rank else places[rank, :count]
            if rank == 0:
                first = part
            else:
                np.add(first, part, out=total)
                first = total


def _does(size: int) -> str:
    return "has ended its step" if size == END else f"adds {size} numbers"


def _arrays(*tensors: Any) -> list[Floats]:
    """The memory of tensors of a CPU."""
    found: list[Any] = [np.from_dlpack(one) for one in tensors]
    return found
