"""What a device does at run time: it keeps memory, links libraries, and carries numbers.

A `Backend` (`base.py`) has one. No TVM is imported here.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import tvm_ffi

    from mlc_llm.backends.ranks.meeting import Meeting
    from mlc_llm.support.host_array import HostArray

Result = TypeVar("Result")
Numbers: TypeAlias = "array[int] | array[float]"
Table: TypeAlias = "tuple[Numbers, int]"
"""int32 (`array("i")`) or float32 (`array("f")`), row by row, and how long a row is; 0 for a plain
list of numbers."""
DeviceTensor: TypeAlias = "tvm_ffi.Tensor"
"""A tensor in the memory of a device, at run time."""


class Staging(Protocol):
    """Takes a step's few numbers to the device."""

    def tensors(self, *tables: Table) -> list[DeviceTensor]:
        """A tensor of each table's values; they are good until the next call."""
        ...


class Repeats(Protocol):
    """Repeats what was started on a device, with one call."""

    def run(self, kind: str, inputs: Sequence[object], work: Callable[[], Result]) -> Result:
        """The result of `work`, which starts code on the device and waits for nothing.

        kind: in words; what `work` starts differs for each. inputs: all objects whose addresses it
        uses, which are kept. While they are the very same, `work` may not be called: what it had
        started is started again, and its result lies in the same tensors."""
        ...


class Scratch(Protocol):
    """Memory whose values mean nothing between two steps."""

    @property
    def tensor(self) -> DeviceTensor:
        """uint8 [bytes]."""
        ...

    def give_back(self) -> None:
        """The system gets what is large; it comes back when it is used again."""
        ...


class Fetched(Protocol):
    """Values of a device on their way to the host."""

    def values(self) -> Sequence[npt.NDArray[Any]]:
        """Waits for them; they are good until the next step."""
        ...

    def numbers(self) -> list[int]:
        """Waits for those of the first tensor, int32 [n], alone."""
        ...


class RankSums(Protocol):
    """Sums over all ranks of a model, of one rank. One thread at a time."""

    def add(self, x: DeviceTensor, total: DeviceTensor) -> None:
        """total = the sum of all ranks' x, both float32 and in one piece. It may be computed behind
        the caller, in the order of all else that the device computes. Raises EngineDead."""

    def end_step(self) -> None:
        """Return when all ranks have ended the step, with all of its sums. Raises EngineDead, in
        all ranks if one of them has added up something else."""

    def close(self) -> None:
        """Nothing is added any more; what waits for other ranks ends. Raises nothing."""


class Functions(Protocol):
    """The functions of a library, by name."""

    @property
    def launches(self) -> int:
        """Kernels that have begun so far, as a sign that a long step moves; 0 where nobody counts.
        Any thread may ask, at any time."""
        ...

    def __getitem__(self, name: str) -> Callable[..., Any]: ...

    def with_last(self, name: str, last: Sequence[DeviceTensor]) -> Callable[..., Any]:
        """The function with these last arguments, which live as long as the library."""
        ...


class Device(Protocol):
    """Memory and code of a device at run time."""

    shows_memory: bool
    """`read` copies nothing: what is written there is in the tensor."""

    def link(
        self, folder: Path, files: Sequence[str], requires: Sequence[str], ranks: int = 1
    ) -> Functions:
        """The functions of a library, by name. `files` and `requires`: what `compile` returned.
        ranks: processes that compute together and share what the machine has. Raises
        BrokenLibrary."""

    def zeros(self, shape: Sequence[int], dtype: str) -> DeviceTensor:
        """A tensor for KV pages and the like."""

    def scratch(self, size: int) -> Scratch:
        """Memory for what a step computes. Only what is used takes memory."""

    def upload(self, array: npt.NDArray[np.generic] | HostArray) -> DeviceTensor:
        """A tensor of an array's values, which stays. It may be the array's own memory."""

    def write(self, tensor: DeviceTensor, index: int, values: npt.ArrayLike) -> None:
        """Change tensor[index]. No code that reads the tensor may run meanwhile."""

    def staging(self) -> Staging: ...

    def repeats(self) -> Repeats | None:
        """None: a step is started anew each time, which costs little."""
        ...

    def read(self, tensor: DeviceTensor) -> npt.NDArray[Any]:
        """A tensor's values; they are good until the next step."""

    def fetch(self, tensors: Sequence[DeviceTensor]) -> Fetched:
        """Starts to read tensors, behind all that computes until now and before what is started
        later. Called by the thread that computes."""
        ...

    def rank_key(self) -> bytes:
        """By what the devices of ranks find each other. Rank 0 makes it, for all. Raises
        UnusableDevice."""
        ...

    def rank_sums(self, meeting: Meeting, key: bytes) -> RankSums:
        """Sums over the ranks that meet there. It may wait until all ranks have called it. Raises
        EngineDead, UnusableDevice."""
        ...

    def move(
        self, source: DeviceTensor, first: int, target: DeviceTensor, at: int, count: int
    ) -> None:
        """target[at : at + count] = source[first : first + count] of plain lists of numbers, in the
        order of all that computes."""
