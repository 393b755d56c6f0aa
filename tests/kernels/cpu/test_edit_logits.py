"""Bias, penalties and masks, against plain NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.edit_logits import edit_logits

Edit = tuple[int, int, float, float, float]


def edited(isa: Isa, logits: Array, edits: list[Edit], masks: dict[int, list[int]]) -> Array:
    """edits: (row, token, added, factor, subtracted); masks: allowed tokens by row."""
    s, vocab = logits.shape
    padded = -(-vocab // 32) * 32 + 32
    x = np.full((s, padded), 7, np.float32)
    x[:, :vocab] = logits
    bits = np.zeros((len(masks), -(-vocab // 32) * 32), np.uint8)
    for i, allowed in enumerate(masks.values()):
        bits[i, allowed] = 1
    build(isa, edit_logits, vocab, padded)(
        np.asarray([edit[:2] for edit in edits], np.int32).reshape(-1, 2),
        np.asarray([edit[2:] for edit in edits], np.float32).reshape(-1, 3),
        np.asarray(list(masks), np.int32),
        np.packbits(bits, axis=1, bitorder="little").view(np.int32),
        x,
    )
    assert (x[:, -32:] == 7).all()
    return x[:, :vocab]


@each_isa()
def test_edits_in_their_order(isa: Isa) -> None:
    logits = np.array([[4, -4, 0, 4], [1, 2, 3, np.nan]], np.float32)
    found = edited(
        isa,
        logits,
        [
            (0, 0, 0, 2, 0),
            (0, 1, 0, 2, 0.5),
            (0, 2, 0, 2, 0),
            (1, 0, 3, 1, 0),
            (1, 0, 0, 2, 0.25),
            (1, 3, 1, 2, 1),
        ],
        {},
    )
    expected = [[2, -8.5, 0, 4], [(1 + 3) / 2 - 0.25, 2, 3, np.nan]]
    assert np.array_equal(found, np.array(expected, np.float32), equal_nan=True)


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 300])
@each_isa()
def test_masks(isa: Isa, vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    logits = rng.standard_normal((5, vocab)).astype(np.float32)
    masks = {row: np.flatnonzero(rng.random(vocab) < 0.5).tolist() for row in (3, 0)}
    masks[4] = []
    found = edited(isa, logits, [], masks)
    for row in range(5):
        allowed = masks.get(row, list(range(vocab)))
        expected = np.full(vocab, -np.inf, np.float32)
        expected[allowed] = logits[row, allowed]
        assert np.array_equal(found[row], expected)


@each_isa()
def test_a_mask_comes_last_and_hides_no_failure(isa: Isa) -> None:
    logits = np.array([[np.nan, np.inf, 1, np.nan, -np.inf, 5]], np.float32)
    found = edited(isa, logits, [(0, 5, 100, 1, 0), (0, 2, 1, 1, 0)], {0: [2, 3, 4]})[0]
    assert np.isnan(found[:2]).all() and np.isnan(found[3])
    assert found[[2, 4, 5]].tolist() == [2, -np.inf, -np.inf]
