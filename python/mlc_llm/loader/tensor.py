"""What a tensor of a model's files is, whichever format the files have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np


class Tensor(Protocol):
    """A tensor that is read when it is needed."""

    @property
    def name(self) -> str:
        """As the file has it, for errors."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Rows first, the contiguous axis last."""
        ...

    @property
    def kind(self) -> str:
        """The type of its values, such as "F16" or "Q4_0"."""
        ...

    @property
    def data(self) -> npt.NDArray[np.uint8]:
        """Its bytes, a read-only vector. Each use may compute them anew."""
        ...

    def matrix(self, index: int) -> Tensor:
        """One matrix of a stack [matrices, rows, columns]."""
        ...

    def give_back(self) -> None:
        """Let the system take back the memory of all pages of its file that were read. `data`
        stays usable: the next access reads the file again."""
