"""Which experts tokens get, and the way of rows to experts and back."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from kernel_tools import Array, accumulated, build, each_isa

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.expert_routing import collect, route, send

WIDTH = 32
CASES = [(5, 2), (32, 8), (9, 9), (1, 1), (20, 12)]
"""Experts, and how many a token gets."""


def routed(
    isa: Isa,
    scores: Array,
    experts: int,
    chosen: int,
    *,
    of_chosen: bool,
    bias: Array | None = None,
    **kind: Any,
) -> tuple[Array, Array, Array, Array]:
    """Weights, expert rows, tokens and starts, from scores [m, experts]."""
    m = len(scores)
    padded = np.full((m, WIDTH), 1e9, np.float32)  # no expert, however large its score
    padded[:, :experts] = scores
    weights, expert_rows = (
        np.full((m, chosen), np.nan, np.float32),
        np.full((m, chosen), -1, np.int32),
    )
    tokens, starts = np.full(m * chosen, -1, np.int32), np.full(experts + 1, -1, np.int32)
    has_bias = bias is not None
    kernel = build(
        isa, route, experts, WIDTH, chosen, of_chosen=of_chosen, has_bias=has_bias, **kind
    )
    kernel(padded, *([] if bias is None else [bias]), weights, expert_rows, tokens, starts)
    return weights, expert_rows, tokens, starts


def scores_of(m: int, experts: int) -> Array:
    """Random scores, of which some are equal."""
    scores = np.random.default_rng(m).standard_normal((m, experts)).astype(np.float32) * 3
    scores[: m // 2] = np.round(scores[: m // 2])
    return scores


def experts_of(expert_rows: Array, starts: Array) -> Array:
    """The expert of each expert row."""
    return np.searchsorted(starts, expert_rows, side="right") - 1


@pytest.mark.one_of(3)
@pytest.mark.parametrize("of_chosen", [False, True])
@pytest.mark.parametrize(("experts", "chosen"), CASES)
@each_isa()
def test_against_numpy(isa: Isa, experts: int, chosen: int, of_chosen: bool) -> None:
    for m in (1, 2, 3, 40):
        scores = scores_of(m, experts)
        weights, expert_rows, tokens, starts = routed(
            isa, scores, experts, chosen, of_chosen=of_chosen
        )
        best = np.argsort(-scores, axis=1, kind="stable")[:, :chosen]
        assert (experts_of(expert_rows, starts) == best).all()
        powers = np.exp(scores.astype(np.float64) - scores.max(axis=1, keepdims=True))
        expected = np.take_along_axis(powers, best, axis=1)
        expected /= (expected if of_chosen else powers).sum(axis=1, keepdims=True)
        assert np.abs(weights - expected).max() <= 1e-6
        assert sorted(expert_rows.ravel()) == list(range(m * chosen))
        assert (tokens[expert_rows] == np.arange(m)[:, None]).all()
        for start, end in pairwise(starts):
            assert (np.diff(tokens[start:end]) > 0).all(), "an expert's tokens are in their order"


@each_isa()
def test_a_bias_is_added_to_the_scores(isa: Isa) -> None:
    scores, bias = scores_of(9, 20), np.linspace(-3, 3, 20).astype(np.float32)
    found = routed(isa, scores, 20, 6, of_chosen=False, bias=bias)
    expected = routed(isa, scores + bias, 20, 6, of_chosen=False)
    for one, other in zip(found, expected, strict=True):
        assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(("of_chosen", "scale"), [(True, 2.5), (False, 1.0)])
@each_isa()
def test_weights_of_sigmoids(isa: Isa, of_chosen: bool, scale: float) -> None:
    """A bias counts in the choice alone."""
    scores, bias = scores_of(9, 20), np.linspace(-1, 1, 20).astype(np.float32)
    weights, expert_rows, _, starts = routed(
        isa, scores, 20, 6, of_chosen=of_chosen, bias=bias, by_sigmoid=True, scale=scale
    )
    sigmoids = 1 / (1 + np.exp(-scores.astype(np.float64)))
    best = np.argsort(-(sigmoids + bias), axis=1)[:, :6]
    assert (experts_of(expert_rows, starts) == best).all()
    expected = np.take_along_axis(sigmoids, best, axis=1)
    if of_chosen:
        expected /= expected.sum(axis=1, keepdims=True)
    assert np.abs(weights - scale * expected).max() <= 1e-6 * scale


@each_isa()
def test_tokens_do_not_know_each_other(isa: Isa) -> None:
    scores = scores_of(40, 20)
    weights, expert_rows, _, starts = routed(isa, scores, 20, 6, of_chosen=False)
    for i in range(40):
        alone, own, _, begun = routed(isa, scores[i : i + 1], 20, 6, of_chosen=False)
        assert alone[0].tobytes() == weights[i].tobytes()
        assert (experts_of(own, begun)[0] == experts_of(expert_rows, starts)[i]).all()


@each_isa()
def test_scores_that_are_no_numbers_choose_experts_too(isa: Isa) -> None:
    scores = scores_of(4, 20)
    scores[1], scores[2, 3], scores[3] = np.nan, np.nan, -np.inf
    weights, expert_rows, _, starts = routed(isa, scores, 20, 6, of_chosen=True)
    chosen = experts_of(expert_rows, starts)
    assert starts[-1] == 24 and all(len(set(row)) == 6 for row in chosen)
    assert np.isfinite(weights[0]).all()


@pytest.mark.parametrize("row", [(64,), (3, 22), (5, 4, 14)])
@each_isa()
def test_rows_are_sent(isa: Isa, row: tuple[int, ...]) -> None:
    x = np.arange(300 * np.prod(row), dtype=np.int32).reshape(300, *row)
    for count in (1, 7, 1200):
        tokens = np.random.default_rng(count).integers(0, 300, count, dtype=np.int32)
        y = np.full((count, *row), -1, np.int32)
        build(isa, send, row, "int32")(tokens, x, y)
        assert (y == x[tokens]).all()


@each_isa()
def test_results_are_collected(isa: Isa) -> None:
    chosen, width, rng = 3, 96, np.random.default_rng(0)
    for m in (1, 5, 400):
        weights = rng.random((m, chosen)).astype(np.float32)
        expert_rows = rng.permutation(m * chosen).reshape(m, chosen).astype(np.int32)
        x = rng.standard_normal((m * chosen, width)).astype(np.float32)
        kernel, y = build(isa, collect, width, chosen), np.full((m, width), np.nan, np.float32)
        kernel(weights, expert_rows, x, y)
        terms = weights.astype(np.float64)[..., None] * x[expert_rows]
        bound = accumulated(2 * chosen) * np.abs(terms).sum(axis=1)
        assert (np.abs(y - terms.sum(axis=1)) <= bound).all()
        last, order = np.full((1, width), np.nan, np.float32), np.arange(chosen, dtype=np.int32)
        kernel(weights[-1:], order[None], x[expert_rows[-1]], last)
        assert last[0].tobytes() == y[-1].tobytes(), "the others make no difference"
