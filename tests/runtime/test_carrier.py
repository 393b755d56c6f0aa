"""What a copy of a sequence takes of the states of a runner, and where another one puts it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.library.metadata import KVGroupInfo, KVInfo, StateInfo
from mlc_llm.runtime.carrier import Carrier
from mlc_llm.runtime.kv_cache import KVCache
from mlc_llm.runtime.layer_memory import allocate_states
from mlc_llm.runtime.library import item
from mlc_llm.runtime.limits import state_slots
from mlc_llm.runtime.state_table import EMPTY, StateTable

CHUNK, SEQUENCES = 4, 2
GROUP = KVGroupInfo((), 0, 0, None, query_block=1, fast_query_block=1, kv_split=1)
INFO: Any = SimpleNamespace(
    kv=KVInfo(16, "float32", (GROUP,)),
    states=(StateInfo(0, (3,), by_chunk=False), StateInfo(0, (2, 2), by_chunk=True)),
)


class States:
    """The states of a runner, with a number of its own in each row."""

    def __init__(self, first: float) -> None:
        device, rows = CpuDevice(), state_slots(SEQUENCES)
        self.table = StateTable(SEQUENCES, chunk=CHUNK)
        self.cache = KVCache(
            INFO.kv, [9], SEQUENCES, lambda *given: None, (None,), states=self.table
        )
        tensors = allocate_states(INFO.states, rows, rows, device)
        self.slots, self.bases = (device.read(item(tensors, i)) for i in range(2))
        self.slots.T[:], self.bases.T[:] = np.arange(rows) + first, -np.arange(rows) - first
        self.carrier = Carrier(INFO, self.cache, tvm_ffi.convert([]), tensors, device)

    def compute(self, seq_id: int, *counts: int) -> None:
        """Several steps."""
        self.cache.add(seq_id)
        for count in counts:
            self.cache.place([(seq_id, count)])


@pytest.mark.parametrize("counts", [(3,), (4,), (5, 1, 1), (3, 6, 2)])
def test_a_slot_and_its_base(counts: tuple[int, ...]) -> None:
    first, second = States(1), States(100)
    first.compute(0, *counts)
    second.compute(0, 5)
    slot, base = first.table.where(0)
    assert (base == EMPTY) == (sum(counts) < CHUNK)
    transfer = first.carrier.take(0, "a model")
    before = second.slots.copy(), second.bases.copy()
    second.carrier.put(1, transfer)
    second.cache.check_integrity()
    new_slot, new_base = second.table.where(1)
    assert EMPTY not in (new_slot, new_base)
    before[0][new_slot], before[1][new_base] = first.slots[slot], first.bases[base]
    assert (second.slots == before[0]).all() and (second.bases == before[1]).all()
