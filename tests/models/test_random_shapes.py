"""Models of random shapes against NumPy: sizes that nobody chose with the kernels in mind."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from architecture_tools import check_against_numpy
from decoder_reference import Facts

from mlc_llm.testing.tiny_model import TinyShape

ARCHITECTURES = {"llama": Facts(), "qwen3": Facts("qwen3", interleaved=False)}
CASES = [
    pytest.param(seed, kernels, marks=[] if is_quick else pytest.mark.slow)
    for seed in range(6)
    for kernels in ("portable", "reference")
    for is_quick in [(seed, kernels) in ((0, "portable"), (1, "reference"))]
]


def random_shape(seed: int) -> TinyShape:
    """As wild as the CPU kernels permit, and small enough to compile within seconds."""
    choice = Random(seed)
    architecture = sorted(ARCHITECTURES)[seed % len(ARCHITECTURES)]
    kv_heads = choice.randint(1, 3)
    heads = kv_heads * choice.randint(1, 5)
    head_dim = 16 * choice.randint(1, 5)
    if heads * head_dim % 32:
        head_dim += 16
    return TinyShape(
        architecture,
        layers=choice.randint(1, 3),
        hidden=32 * choice.randint(1, 5),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=32 * choice.randint(1, 7),
        tied_head=choice.random() < 0.5,
        rope_theta=choice.choice([1e4, 5e5, 1e6]),
        head_norms=architecture == "qwen3",
    )


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("seed", "kernels"), CASES)
def test_logits_against_numpy(tmp_path: Path, seed: int, kernels: str) -> None:
    shape = random_shape(seed)
    facts = ARCHITECTURES[shape.architecture]
    check_against_numpy(tmp_path, shape, facts, kernels, seed=seed, worst=1e-5)
