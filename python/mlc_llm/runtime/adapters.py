"""The LoRA adapters that a model has in memory: a slot each, in tensors that all slots share."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mlc_llm.errors import InvalidField
from mlc_llm.library.adapter_format import block_rows
from mlc_llm.library.metadata import AdaptedInfo, Metadata
from mlc_llm.runtime.batch import AdapterParts, BatchRow, Factors
from mlc_llm.runtime.decode_rows import DecodeRows
from mlc_llm.runtime.limits import AdapterLimits

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mlc_llm.backends.device import Device, DeviceTensor
else:
    from mlc_llm.later_numpy import np


class _Tensors(NamedTuple):
    """Of one matrix; see `library/signatures.py`."""

    down: DeviceTensor
    up: DeviceTensor
    ranks: DeviceTensor


class AdapterMemory:
    """All slots, empty at first. One thread at a time; no step may run meanwhile."""

    def __init__(self, infos: Sequence[AdaptedInfo], limits: AdapterLimits, device: Device) -> None:
        self._infos, self._limits, self._device = infos, limits, device
        self._tensors = [_empty(one, limits, device) for one in infos]

    @property
    def tensors(self) -> list[DeviceTensor]:
        """`forward`'s argument `adapters`."""
        return [one for found in self._tensors for one in found]

    def load(self, slot: int, parts: AdapterParts) -> None:
        """Put an adapter into a slot, which no row of a step has until then."""
        for info, tensors in zip(self._infos, self._tensors, strict=True):
            self._write(slot, info, tensors, parts.get(info.name, ()))

    def _write(
        self, slot: int, info: AdaptedInfo, tensors: _Tensors, parts: Sequence[Factors | None]
    ) -> None:
        rank = self._limits.rank
        down = np.zeros((len(info.widths), rank, info.columns), np.float32)
        up = np.zeros((rank, sum(info.widths)), np.float32)
        most = start = 0
        given = parts or [None] * len(info.widths)
        for p, (width, one) in enumerate(zip(info.widths, given, strict=True)):
            if one is not None:
                own = len(one.down)
                down[p, :own], up[:own, start : start + width] = _balanced(one)
                most = max(most, own)
            start += width
        blocks = up.reshape(rank, -1, block_rows(info.widths)).swapaxes(0, 1)
        for tensor, values in zip(
            tensors, (_rounded(down, info), _rounded(blocks, info), np.int32(most)), strict=True
        ):
            self._device.write(tensor, slot, values)


def _empty(info: AdaptedInfo, limits: AdapterLimits, device: Device) -> _Tensors:
    """See `library/adapter_format.py`."""
    slots, rank, block = limits.slots, limits.rank, block_rows(info.widths)
    return _Tensors(
        device.zeros((slots, len(info.widths), rank, info.columns), info.dtype),
        device.zeros((slots, sum(info.widths) // block, rank, block), info.dtype),
        device.zeros((slots,), "int32"),
    )


def _balanced(factors: Factors) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """`down` [rank, columns] and `up` [rank, rows], which may be rounded to float16: a row of both
    has numbers of the same size. They are moved by powers of two, so their product is the same."""
    down, up = factors.down, factors.up.T
    exponents = [np.frexp(np.abs(one).max(axis=1))[1] for one in (down, up)]
    shift = ((exponents[1] - exponents[0]) // 2)[:, None]
    return np.ldexp(down, shift), np.ldexp(up, -shift)


def _rounded(values: npt.NDArray[np.float32], info: AdaptedInfo) -> npt.NDArray[np.generic]:
    """As the kernels read them. Raises InvalidField for numbers that are too large for that."""
    with np.errstate(over="ignore"):
        found = values.astype(info.dtype)
    if not np.isfinite(found).all():
        largest = float(np.abs(values).max())
        raise InvalidField("adapters", largest, f"a factor of {info.name} is too large")
    return found


def adapter_slots(rows: Sequence[BatchRow]) -> array[int]:
    """The slot of each token of a step."""
    if type(rows) is DecodeRows:
        return rows.same.adapters
    found = array("i")
    for row in rows:
        found.extend([row.adapter] * len(row.token_ids))
    return found


def check_adapters(metadata: Metadata, adapters: AdapterLimits) -> None:
    """Raises InvalidField unless the library was made for adapters, or without, as this."""
    if bool(metadata.adapted) != bool(adapters.slots):
        has = "for" if metadata.adapted else "without"
        words = f"this library is one {has} adapters; leave model_lib out"
        raise InvalidField("max_adapters", adapters.slots, words)
