"""Qwen3: norms of query and key heads, rotary halves, no biases."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_tools import check_against_numpy
from decoder_reference import Facts
from pairs import every_other

from mlc_llm.testing.tiny_model import TinyShape

FACTS = Facts("qwen3", interleaved=False)
SHAPES = (
    TinyShape("qwen3", head_norms=True, rope_theta=1e6),
    TinyShape(
        "qwen3", layers=3, hidden=96, heads=6, kv_heads=2, head_dim=32, head_norms=True,
        tied_head=False, rope_theta=1e6,
    ),
    TinyShape("qwen3", layers=1, heads=2, kv_heads=1, head_dim=128, head_norms=True),
)  # fmt: skip


@pytest.mark.one_of(3)
@pytest.mark.parametrize(
    ("which", "kernels"), every_other(range(len(SHAPES)), ["reference", "portable"])
)
def test_logits_against_numpy(tmp_path: Path, which: int, kernels: str) -> None:
    check_against_numpy(tmp_path, SHAPES[which], FACTS, kernels, seed=which, worst=1e-5)


def test_on_this_machine(tmp_path: Path) -> None:
    """Keys and values are float16 there."""
    check_against_numpy(tmp_path, SHAPES[1], FACTS, None, seed=7, worst=3e-3)
