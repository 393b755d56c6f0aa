"""Gemma 3: windows and rotary tables that alternate, norms before and after, GELU."""

from __future__ import annotations

from pathlib import Path

import pytest
from architecture_tools import check_against_numpy
from decoder_reference import Facts, gelu_tanh

from mlc_llm.testing.tiny_model import TinyShape

WINDOW, HIDDEN = 20, 64
GLOBAL = 6


def facts(hidden: int = HIDDEN) -> Facts:
    return Facts(
        "gemma3",
        interleaved=False,
        activation=gelu_tanh,
        theta_of_layer=lambda layer: 1e4 if (layer + 1) % GLOBAL else 1e6,
        window_of_layer=lambda layer: (WINDOW, 0) if (layer + 1) % GLOBAL else None,
        embedding_scale=hidden**0.5,
    )


def shape(layers: int = 7, hidden: int = HIDDEN, heads: int = 4, kv_heads: int = 1) -> TinyShape:
    return TinyShape(
        "gemma3", layers=layers, hidden=hidden, heads=heads, kv_heads=kv_heads, head_dim=32,
        rope_theta=1e6, head_norms=True, post_norms=True, window=WINDOW,
    )  # fmt: skip


@pytest.mark.parametrize("kernels", ["reference", pytest.param("portable", marks=pytest.mark.slow)])
def test_logits_against_numpy(tmp_path: Path, kernels: str) -> None:
    check_against_numpy(tmp_path, shape(), facts(), kernels, seed=3, worst=1e-5)


@pytest.mark.slow
def test_other_sizes(tmp_path: Path) -> None:
    other = shape(layers=12, hidden=96, heads=2, kv_heads=2)
    check_against_numpy(tmp_path, other, facts(96), "reference", seed=4, worst=1e-5)


def test_on_this_machine(tmp_path: Path) -> None:
    """Keys and values are float16 there."""
    check_against_numpy(tmp_path, shape(), facts(), None, seed=5, worst=3e-3)
