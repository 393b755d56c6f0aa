"""Rows of an embedding table on a GPU."""

from __future__ import annotations

import numpy as np
import pytest
from cuda_code import check_code
from emulated import Emulator
from tile_tools import KINDS, random_matrix

from mlc_llm.backends.cuda.formats import WeightFormat, format_of_kind
from mlc_llm.kernels.cuda.embedding import embedding

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [32, 288])
def test_each_row_of_the_table(emulate: Emulator, kind: str, k: int) -> None:
    k = 256 if format_of_kind(kind).has_units else k
    table = random_matrix(kind, 40, k)
    tokens = np.arange(40, dtype=np.int32)[::-1].copy()
    y = np.zeros((40, k), np.float32)
    *_, y = emulate(embedding(64, k, table.format, 2.0), tokens, table.packed, y)
    expected = 2 * table.values[tokens]
    assert np.allclose(y, expected, rtol=1e-6, atol=1e-6)


def test_machine_code() -> None:
    check_code(embedding(49152, 576, WeightFormat(has_minimum=True)), wanted={"LDG", "STG"})
