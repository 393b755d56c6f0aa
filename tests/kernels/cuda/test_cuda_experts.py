"""Experts on a GPU: which ones tokens get, how their rows are sorted, and products of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from plane_tools import as_planes
from tile_tools import random_matrix

from mlc_llm.backends.cuda.formats import format_of_kind
from mlc_llm.kernels.cuda.expert_matmul import ExpertShape, expert_matmul
from mlc_llm.kernels.cuda.expert_routing import (
    CHUNK,
    add_own_bias,
    choose,
    choose_by_sigmoid,
    collect,
    sort,
)
from mlc_llm.kernels.cuda.matmul import ROWS, matmul

pytestmark = pytest.mark.cuda
Array = npt.NDArray[Any]
EXPERTS, CHOSEN, TOKENS = 40, 3, 37


def scores() -> Array:
    """Some are alike: then the first one comes first."""
    found = np.random.default_rng(0).normal(size=(TOKENS, 64)).astype(np.float32)
    found[3, 5:20] = 9.0
    return found


@pytest.mark.parametrize("of_chosen", [False, True])
def test_which_experts_a_token_gets(emulate: Emulator, of_chosen: bool) -> None:
    bias = np.random.default_rng(1).normal(size=EXPERTS).astype(np.float32)
    weights = np.zeros((TOKENS, CHOSEN), np.float32)
    choice = np.zeros((TOKENS, CHOSEN), np.int32)
    kernel = choose(EXPERTS, 64, CHOSEN, of_chosen=of_chosen, has_bias=True)
    *_, weights, choice = emulate(kernel, scores(), bias, weights, choice)
    x = scores()[:, :EXPERTS].astype(np.float64) + bias
    assert (choice == np.argsort(-x.astype(np.float32), axis=1, kind="stable")[:, :CHOSEN]).all()
    powers = np.exp(x - x.max(axis=1, keepdims=True))
    own = np.take_along_axis(powers, choice, axis=1)
    total = (own if of_chosen else powers).sum(axis=1, keepdims=True)
    assert np.allclose(weights, own / total, rtol=1e-6, atol=0)


@pytest.mark.parametrize(("of_chosen", "scale"), [(True, 2.5), (False, 1.0)])
def test_weights_of_sigmoids(emulate: Emulator, of_chosen: bool, scale: float) -> None:
    """A bias counts in the choice alone."""
    bias = np.random.default_rng(1).normal(size=EXPERTS).astype(np.float32)
    weights = np.zeros((TOKENS, CHOSEN), np.float32)
    choice = np.zeros((TOKENS, CHOSEN), np.int32)
    kernel = choose_by_sigmoid(EXPERTS, 64, CHOSEN, of_chosen=of_chosen, has_bias=True, scale=scale)
    *_, weights, choice = emulate(kernel, scores(), bias, weights, choice)
    sigmoids = 1 / (1 + np.exp(-scores()[:, :EXPERTS].astype(np.float64)))
    assert (choice == np.argsort(-(sigmoids + bias), axis=1)[:, :CHOSEN]).all()
    own = np.take_along_axis(sigmoids, choice, axis=1)
    expected = scale * (own / own.sum(axis=1, keepdims=True) if of_chosen else own)
    assert np.allclose(weights, expected, rtol=1e-6, atol=0)


def routes(emulate: Emulator) -> tuple[Array, ...]:
    """Of random choices: these, expert rows, tokens, owners and chunks."""
    random = np.random.default_rng(2)
    choice = np.array([random.permutation(4)[:CHOSEN] for _ in range(TOKENS)], np.int32)
    choice[0] = 7, 1, EXPERTS - 1
    rows = TOKENS * CHOSEN
    tables = [np.full(size, -9, np.int32) for size in (choice.shape, rows, rows)]
    chunks = np.full((min(rows, EXPERTS) + rows // ROWS, CHUNK), -9, np.int32)
    found = emulate(sort(EXPERTS, CHOSEN), choice, *tables, chunks)
    return tuple(found)


def test_rows_are_sorted_by_expert(emulate: Emulator) -> None:
    choice, expert_rows, tokens, owners, chunks = routes(emulate)
    order = np.argsort(choice.reshape(-1), kind="stable")
    assert (owners == choice.reshape(-1)[order]).all()
    assert (tokens == order // CHOSEN).all()
    assert (expert_rows.reshape(-1)[order] == np.arange(TOKENS * CHOSEN)).all()
    covered = [r for e, first, end in chunks for r in range(first, end) if owners[r] == e]
    assert covered == list(range(TOKENS * CHOSEN))
    assert all(end - first <= ROWS for _, first, end in chunks)


@pytest.mark.parametrize("kind", ["Q4_K", "MXFP4"])
def test_products_have_the_bits_of_plain_ones(emulate: Emulator, kind: str) -> None:
    _, _, tokens, owners, chunks = routes(emulate)
    fmt, x = format_of_kind(kind), np.random.default_rng(3).normal(size=(TOKENS, 256))
    stack = [random_matrix(kind, 32, 256, seed) for seed in range(EXPERTS)]
    planes, packed = as_planes(x.astype(np.float32)), np.stack([one.packed for one in stack])
    shape = ExpertShape(EXPERTS, 32, 256, fmt)
    y = np.full((len(tokens), 96), 7, np.float32)
    kernel = expert_matmul(shape, 96, 64, has_tokens=True)
    found = emulate(kernel, chunks, tokens, planes, packed, y)[-1]
    assert (found[:, :64] == 7).all()
    for expert in (1, EXPERTS - 1):
        mine = np.flatnonzero(owners == expert)
        out = np.zeros((len(mine), 32), np.float32)
        plain = emulate(matmul(32, 256, fmt), planes[tokens[mine]], stack[expert].packed, out)[-1]
        assert np.ascontiguousarray(found[mine, 64:]).tobytes() == plain.tobytes()


def test_a_bias_of_each_expert_and_the_sum(emulate: Emulator) -> None:
    _, expert_rows, _, owners, _ = routes(emulate)
    random = np.random.default_rng(4)
    x = random.normal(size=(TOKENS * CHOSEN, 64)).astype(np.float32)
    bias = random.normal(size=(EXPERTS, 32)).astype(np.float32)
    weights = random.random(size=(TOKENS, CHOSEN)).astype(np.float32)
    with_bias = emulate(add_own_bias(EXPERTS, 32, 64, 32), owners, bias, x.copy())[-1]
    wanted = x.astype(np.float64)
    wanted[:, 32:] += bias[owners]
    assert np.allclose(with_bias, wanted, rtol=1e-6, atol=1e-6)
    y = np.zeros((TOKENS, 64), np.float32)
    y = emulate(collect(64, CHOSEN), weights, expert_rows, with_bias, y)[-1]
    own = (wanted[expert_rows] * weights[:, :, None]).sum(axis=1)
    assert np.allclose(y, own, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", ["Q4_K", "MXFP4", "Q6_K"])
def test_machine_code(kind: str) -> None:
    shape = ExpertShape(128, 768, 2048, format_of_kind(kind))
    check_code(expert_matmul(shape, 1536, 768, has_tokens=True), wanted={"HMMA", "LDG", "STS"})


def test_machine_code_of_the_rest() -> None:
    check_code(choose(128, 128, 8, of_chosen=True, has_bias=True), wanted={"LDG", "STG", "SHFL"})
    by_sigmoid = choose_by_sigmoid(128, 128, 8, of_chosen=True, has_bias=False, scale=1.0)
    check_code(by_sigmoid, wanted={"LDG", "STG", "SHFL"})
    check_code(sort(128, 8), wanted={"LDG", "STG", "STS", "BAR"})
    check_code(collect(2048, 8), wanted={"LDG", "STG"})
    check_code(add_own_bias(32, 2880, 5760, 2880), wanted={"LDG", "STG"})
