"""A sequence on its way from one runner to another: its pages and its state, with a checksum.

Both runners have the same library and the same weights, so the same bits mean the same. What was
cut short or altered on its way is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mlc_llm.errors import TransferRefused
from mlc_llm.library.metadata import KVInfo
from mlc_llm.runtime.kv_cache import Contents, KVCache
from mlc_llm.runtime.library import item

if TYPE_CHECKING:
    import tvm_ffi

    from mlc_llm.backends.base import Device

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Transfer:
    """What `export_pages` gives and `import_pages` takes."""

    identity: str
    """Of the runner that computed it: see `ModelRunner.identity`."""
    length: int
    """Tokens: their positions are 0 to length - 1."""
    freed: tuple[tuple[int, int], ...]
    """Of each group of layers, the first and the end of the places whose pages were given back."""
    tensors: tuple[Array, ...]
    """Of each layer of attention its pages [pages, kv_heads, 2, page_size * head_dim], then of each
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


class Carrier:
    """Takes sequences out of the memory of a runner, and puts them in."""

    def __init__(
        self,
        info: KVInfo,
        cache: KVCache,
        pages: tvm_ffi.Array,
        states: tvm_ffi.Array,
        device: Device,
    ) -> None:
        """pages: a tensor of each layer of attention. states: of the recurrent layers."""
        layers = sorted((layer, g) for g, one in enumerate(info.groups) for layer in one.layers)
        self._page_size = info.page_size
        self._groups = [group for _, group in layers]
        self._cache, self._pages, self._states, self._device = cache, pages, states, device

    def take(self, seq_id: int, identity: str, length: int | None = None) -> Transfer:
        """A copy of the first `length` tokens of the sequence; None: of all. A sequence with a
        state, or of which pages are freed, is copied whole."""
        there, whole = self._cache.contents(seq_id), self._cache.length(seq_id)
        length = whole if length is None else length
        if length != whole:
            assert 0 < length < whole and there.slot is None and not any(there.freed), "cut"
            count = -(-length // self._page_size)
            there = there._replace(pages=[one[:count] for one in there.pages])
        tensors = [memory[rows].copy() for memory, rows in self._places(there)]
        freed = tuple((one.start, one.stop) for one in there.freed)
        return Transfer(identity, length, freed, tuple(tensors)).sealed()

    def put(self, seq_id: int, transfer: Transfer) -> None:
        """A new sequence with what was checked. Raises `TransferRefused`, and `RequestError` if
        pages lack; nothing has changed then."""
        freed = [range(*one) for one in transfer.freed]
        there = self._cache.restore(seq_id, transfer.length, freed)
        places = self._places(there)
        try:
            wanted = [(len(rows), *memory.shape[1:]) for memory, rows in places]
            if wanted != _shapes(transfer.tensors):
                raise TransferRefused("the pages have another shape than those of this runner")
            for (memory, rows), values in zip(places, transfer.tensors, strict=True):
                if not memory.flags.writeable:
                    raise TransferRefused("pages of this device cannot be written from outside")
                memory[rows] = values
        except BaseException:
            self._cache.remove(seq_id)
            raise

    def _places(self, there: Contents) -> list[tuple[Array, list[int]]]:
        """Of each tensor its memory, and the rows that belong to the sequence."""
        read = self._device.read
        rows = [list(one) for one in there.pages]
        found = [
            (read(item(self._pages, number)), rows[group])
            for number, group in enumerate(self._groups)
        ]
        if there.slot is not None:
            states = (item(self._states, number) for number in range(len(self._states)))
            found += [(read(one), [there.slot]) for one in states]
        return found


def _shapes(tensors: Sequence[Array]) -> list[tuple[int, ...]]:
    return [one.shape for one in tensors]
