"""Biases of experts are added to their rows, and to nothing else."""

from __future__ import annotations

import numpy as np
from kernel_tools import build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.expert_bias import add_expert_bias


@each_isa()
def test_each_row_gets_the_bias_of_its_expert(isa: Isa) -> None:
    rng, loads = np.random.default_rng(0), (2, 0, 5)
    starts = np.concatenate([[0], np.cumsum(loads)]).astype(np.int32)
    bias = rng.standard_normal((3, 32)).astype(np.float32)
    for first in (0, 32):
        y = rng.standard_normal((7, 64)).astype(np.float32)
        expected = y.copy()
        expected[:, first : first + 32] += np.repeat(bias, loads, axis=0)
        build(isa, add_expert_bias, 3, 32, 64, first)(starts, bias, y)
        assert y.tobytes() == expected.tobytes()
