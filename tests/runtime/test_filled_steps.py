"""Rows that fill up a step which a device repeats: they touch nothing that a sequence has."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

from mlc_llm.backends.cpu.device import CpuDevice
from mlc_llm.library.state_format import STATE_ROW
from mlc_llm.runtime.decode_steps import StepSize
from mlc_llm.runtime.kv_cache import Placements
from mlc_llm.runtime.state_table import EMPTY, StatePlace, StateTable
from mlc_llm.runtime.steady_rows import Placement
from mlc_llm.runtime.step_inputs import StepNumbers

SEQUENCES, SIZE, PAGES = 3, 8, 5


def test_they_read_the_empty_state_and_write_a_spare_one() -> None:
    table, spare = StateTable(SEQUENCES, chunk=4), StatePlace(40, 30)
    for seq_id in range(SEQUENCES):
        table.add(seq_id)
    rows = table.place([(seq_id, 1) for seq_id in range(SEQUENCES)])
    one = array("i", range(SEQUENCES))
    blocks = array("i", [number for i in one for number in (i, 1, i)])
    placed = Placements(one, [Placement(one, one, blocks, one)], rows)
    step: Any = SimpleNamespace(page_counts=(PAGES,), page_size=16, spare_state=spare)
    numbers = StepNumbers(one, placed, one, fast_tokens=0, adapters=None)
    filled = StepSize(SIZE, step, CpuDevice()).filled(numbers).placed.state_rows
    assert filled is not None and len(filled) == SIZE * STATE_ROW
    assert filled[: len(rows)] == rows
    for i in range(SEQUENCES, SIZE):
        row = filled[i * STATE_ROW : (i + 1) * STATE_ROW].tolist()
        assert row == [i, 1, EMPTY, 40, EMPTY, 30, 0]
