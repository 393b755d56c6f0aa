"""The most likely tokens of a row, against a sort."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.top_tokens import LOWEST, MOST, top_tokens


def top(isa: Isa, logits: Array, rows: list[int]) -> tuple[Array, Array, Array]:
    """Tokens, log-probabilities and totals; what lies in the padding must not matter."""
    s, vocab = logits.shape
    padded = -(-vocab // 32) * 32
    x = np.full((s, padded), 1e30, np.float32)
    x[:, :vocab] = logits
    token = np.full((len(rows), MOST), -7, np.int32)
    logprob = np.full((len(rows), MOST), np.nan, np.float32)
    total = np.full(len(rows), np.nan, np.float32)
    kernel = build(isa, top_tokens, vocab, padded)
    kernel(x, np.asarray(rows, np.int32), token, logprob, total)
    return token, logprob, total


def check(isa: Isa, logits: Array, rows: list[int]) -> None:
    """AssertionError unless ids are those of a stable sort and values those of float64."""
    token, logprob, total = top(isa, logits, rows)
    count = min(MOST, logits.shape[1])
    for i, row in enumerate(rows):
        wide = logits[row].astype(np.float64)
        exact = wide - wide.max() - np.log(np.exp(wide - wide.max()).sum())
        expected = np.lexsort((np.arange(len(wide)), -wide))[:count]
        assert token[i].tolist() == expected.tolist() + [-1] * (MOST - count)
        finite = np.isfinite(exact[expected])
        error = logprob[i, :count][finite] - exact[expected][finite]
        assert np.abs(error).max() <= 1e-5 * max(1, np.abs(exact[expected][finite]).max())
        assert total[i] == pytest.approx(wide.max() - exact.max(), abs=1e-5, rel=1e-6)


@pytest.mark.one_of(4)
@pytest.mark.parametrize("vocab", [1, 5, 16, 19, 33, 300, 512, 513, 1003, 4096])
@each_isa()
def test_any_vocabulary_size(isa: Isa, vocab: int) -> None:
    logits = (np.random.default_rng(vocab).standard_normal((4, vocab)) * 4).astype(np.float32)
    logits[3, -1] = 30  # the very last entry counts like the others
    check(isa, logits, [3, 0, 2])


@pytest.mark.parametrize("values", [1, 2, 5])
@each_isa()
def test_of_equals_the_lowest_ids_come_first(isa: Isa, values: int) -> None:
    """Few different values: ties within a column, across columns and across the cut."""
    rng = np.random.default_rng(values)
    check(isa, rng.integers(0, values, (6, 1700)).astype(np.float32), list(range(6)))
    sparse = np.zeros((1, 1700), np.float32)
    sparse[0, [1699, 16, 0, 512, 528]] = 1
    check(isa, sparse, [0])


@each_isa()
def test_forbidden_tokens_come_last(isa: Isa) -> None:
    logits = np.full((1, 600), -np.inf, np.float32)
    logits[0, [7, 599, 8]] = [1, 2, -3e38]
    token, logprob, _ = top(isa, logits, [0])
    assert token[0].tolist() == [599, 7, 8, *range(7), *range(9, 19)]
    assert (logprob[0, 3:] <= 0.99 * LOWEST).all()


@each_isa()
def test_a_row_is_its_own(isa: Isa) -> None:
    logits = (np.random.default_rng(1).standard_normal((5, 999)) * 3).astype(np.float32)
    together = top(isa, logits, [4, 1, 1])
    for i, row in enumerate([4, 1, 1]):
        for whole, alone in zip(together, top(isa, logits[row : row + 1], [0]), strict=True):
            assert whole[i].tobytes() == alone[0].tobytes()
    assert [part.shape[0] for part in top(isa, logits, [])] == [0, 0, 0]
