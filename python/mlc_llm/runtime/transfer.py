"""A sequence on its way from one runner to another: its pages and its state, with a checksum.

Both runners have the same library and the same weights, so the same bits mean the same. What was
cut short or altered on its way is refused. No TVM.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from mlc_llm.errors import TransferRefused
from mlc_llm.record import record

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from mlc_llm.later_numpy import np

Array: TypeAlias = "npt.NDArray[Any]"


@record()
class Transfer:
    """What `export_pages` gives and `import_pages` takes."""

    identity: str
    """Of the runner that computed it: see `ModelRunner.identity`."""
    length: int
    """Tokens: their positions are 0 to length - 1."""
    freed: tuple[tuple[int, int], ...]
    """Of each group of layers, the first and the end of the places whose pages were given back."""
    tensors: tuple[Array, ...]
    """Of each layer of attention its pages [pages, kv_heads, 2, elements of a block], then of each
    recurrent tensor one state."""
    digest: str = ""
    """BLAKE2b of all the rest."""

    @property
    def num_bytes(self) -> int:
        """Of the tensors."""
        return sum(one.nbytes for one in self.tensors)

    def sealed(self) -> Transfer:
        """The same with its digest."""
        return replace(self, digest=self._digest())

    def check(self, identity: str, length: int) -> None:
        """identity: of the runner that takes it. length: tokens that are expected.

        Raises `TransferRefused`.
        """
        if self.identity != identity:
            raise TransferRefused("the pages belong to another model or another version")
        if self.length != length:
            raise TransferRefused(f"the pages have {self.length} tokens, and {length} are wanted")
        if self.digest != self._digest():
            raise TransferRefused("the pages were cut short or altered on their way")

    def _digest(self) -> str:
        shapes = [(str(one.dtype), one.shape) for one in self.tensors]
        head = json.dumps([self.identity, self.length, self.freed, shapes])
        found = hashlib.blake2b(head.encode(), digest_size=16)
        for one in self.tensors:
            found.update(np.ascontiguousarray(one).view(np.uint8).data)
        return found.hexdigest()
