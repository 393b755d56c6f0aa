"""Takes sequences out of the memory of a runner, and puts them into that of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from mlc_llm.errors import TransferRefused
from mlc_llm.library.metadata import Metadata
from mlc_llm.runtime.kv_cache import Contents, KVCache
from mlc_llm.runtime.library import item
from mlc_llm.runtime.transfer import Transfer

if TYPE_CHECKING:
    import numpy.typing as npt
    import tvm_ffi

    from mlc_llm.backends.device import Device

Array: TypeAlias = "npt.NDArray[Any]"


class Carrier:
    """Takes sequences out of the memory of a runner, and puts them in."""

    def __init__(
        self,
        info: Metadata,
        cache: KVCache,
        pages: tvm_ffi.Array,
        states: tvm_ffi.Array,
        device: Device,
    ) -> None:
        """pages: a tensor of each layer of attention. states: of the recurrent layers."""
        groups = info.kv.groups
        layers = sorted((layer, g) for g, one in enumerate(groups) for layer in one.layers)
        self._page_size, self._group_count = info.kv.page_size, len(groups)
        self._groups = [group for _, group in layers]
        self._by_chunk = [one.by_chunk for one in info.states]
        self._cache, self._pages, self._states, self._device = cache, pages, states, device

    def take(self, seq_id: int, identity: str, length: int | None = None) -> Transfer:
        """A copy of the first `length` tokens of the sequence; None: of all. A sequence with a
        state, or of which pages are freed, is copied whole. Raises `TransferRefused`."""
        self._check_memory()
        there, whole = self._cache.contents(seq_id), self._cache.length(seq_id)
        length = whole if length is None else length
        if length != whole:
            assert 0 < length < whole and there.state is None and not any(there.freed), "cut"
            count = -(-length // self._page_size)
            there = there._replace(pages=[one[:count] for one in there.pages])
        tensors = [memory[rows].copy() for memory, rows in self._places(there)]
        freed = tuple((one.start, one.stop) for one in there.freed)
        return Transfer(identity, length, freed, tuple(tensors)).sealed()

    def put(self, seq_id: int, transfer: Transfer) -> None:
        """A new sequence with what was checked. Raises `TransferRefused`, and `RequestError` if
        pages lack; nothing has changed then."""
        self._check_memory()
        freed = [range(*one) for one in transfer.freed]
        if len(freed) != self._group_count:
            raise TransferRefused("the pages are those of another model")
        there = self._cache.restore(seq_id, transfer.length, freed)
        places = self._places(there)
        try:
            wanted = [(memory.dtype, len(rows), *memory.shape[1:]) for memory, rows in places]
            if wanted != _shapes(transfer.tensors):
                raise TransferRefused(
                    "the pages have another shape or type than those of this runner"
                )
            for (memory, rows), values in zip(places, transfer.tensors, strict=True):
                memory[rows] = values
        except BaseException:
            self._cache.remove(seq_id)
            raise

    def _check_memory(self) -> None:
        if not self._device.shows_memory:
            raise TransferRefused("pages of this device are neither taken out nor put in")

    def _places(self, there: Contents) -> list[tuple[Array, list[int]]]:
        """Of each tensor its memory, and the rows that belong to the sequence."""
        read = self._device.read
        rows = [list(one) for one in there.pages]
        found = [
            (read(item(self._pages, number)), rows[group])
            for number, group in enumerate(self._groups)
        ]
        if there.state is not None:
            slot, base = there.state
            found += [
                (read(item(self._states, number)), [base if by_chunk else slot])
                for number, by_chunk in enumerate(self._by_chunk)
            ]
        return found


def _shapes(tensors: Sequence[Array]) -> list[tuple[object, ...]]:
    return [(one.dtype, *one.shape) for one in tensors]
