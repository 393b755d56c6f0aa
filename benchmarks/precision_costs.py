"""What each side of the comparison gives up: the KL of its logits from our exact ones.

Our exact setting is 5e-7 nats from float32 (`accuracy.py`), so it can replace float32 here. A peer
computes a whole piece at once, as it computes a prompt. For ours, the end of a piece is an answer.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from divergence import mean_divergences, write_pieces
from figure_rows import KL
from peers.base import Side
from rounds import Results, attempt


def add_costs(
    results: Results, name: str, model: Path, exact: Side, others: Sequence[Side]
) -> None:
    """Add the fact of this model. A side that gives no logits is missing, with its reason."""
    with tempfile.TemporaryDirectory() as folder:
        pieces, plain = Path(folder) / "pieces.npy", Path(folder) / "exact.npy"
        write_pieces(model, pieces)
        exact.logits(model, pieces, plain)
        found = results.facts.setdefault(KL + name, {})
        for side in others:
            measure = partial(_cost, side, model, pieces, plain)
            cost = attempt(results, f"KL of {side.name}, {name}", measure)
            if cost is not None:
                found[side.name] = cost
                print(f"  {name}, KL of {side.name}: {cost}", flush=True)


def _cost(side: Side, model: Path, pieces: Path, plain: Path) -> dict[str, float]:
    target = plain.with_name("other.npy")
    side.logits(model, pieces, target)
    return mean_divergences(np.load(plain, mmap_mode="r"), np.load(target, mmap_mode="r"))
