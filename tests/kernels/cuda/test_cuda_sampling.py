"""Sampling, edits and likely tokens on a GPU, against float64 with a sort."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from cuda_code import check_code
from emulated import Emulator
from sampling_reference import Options, right

from mlc_llm.kernels.cuda.edit_logits import edit_logits
from mlc_llm.kernels.cuda.sampling import NOT_FINITE, sample
from mlc_llm.kernels.cuda.top_tokens import MOST, top_tokens

pytestmark = pytest.mark.cuda
VOCAB, PADDED = 1003, 1024
CASES = [
    Options(),
    Options(temperature=0.3),
    Options(top_p=0.9),
    Options(top_p=0.0),
    Options(top_k=40),
    Options(top_k=1),
    Options(top_k=200, top_p=0.8),
    Options(min_p=0.1),
    Options(temperature=2.5, top_k=500, top_p=0.95, min_p=0.01),
]
UNIFORM = (0.0, 0.37, 0.999)


def rows(count: int) -> npt.NDArray[np.float32]:
    """Random logits; what lies in the padding must not matter, so it is large."""
    x = np.full((count, PADDED), 1e30, np.float32)
    x[:, :VOCAB] = np.random.default_rng(count).normal(size=(count, VOCAB)) * 3
    return x


def drawn(
    emulate: Emulator, x: npt.NDArray[np.float32], options: list[Options], uniform: list[float]
) -> list[int]:
    numbers = [(o.temperature, o.top_p, o.min_p, u) for o, u in zip(options, uniform, strict=True)]
    *_, token = emulate(
        sample(VOCAB, PADDED),
        *(x, np.array(numbers, np.float32), np.array([o.top_k for o in options], np.int32)),
        *(np.full(x.shape, np.nan, np.float32), np.full(len(x), -7, np.int32)),
    )
    return token.tolist()


def test_the_right_token_is_drawn(emulate: Emulator) -> None:
    options = [one for one in CASES for _ in UNIFORM]
    uniform = [*UNIFORM] * len(CASES)
    x = rows(len(options))
    found = drawn(emulate, x, options, uniform)
    for i, (one, number) in enumerate(zip(options, uniform, strict=True)):
        assert found[i] in right(x[i, :VOCAB], one, number), (one, number)


def test_greedy_and_what_is_no_number(emulate: Emulator) -> None:
    x = rows(6)
    x[0, [700, 41]] = 50
    x[1, 5] = np.nan
    x[2, 1002] = np.inf
    x[3, :VOCAB] = -np.inf
    x[4, :VOCAB] = -np.inf
    x[4, 1001] = -3
    wanted = [41, NOT_FINITE, NOT_FINITE, NOT_FINITE, 1001, int(x[5, :VOCAB].argmax())]
    for cold in (Options(temperature=0.0), Options(temperature=1e-5)):
        assert drawn(emulate, x, [cold] * 6, [0.5] * 6) == wanted
    warm = drawn(emulate, x, [Options(top_k=1)] * 6, [0.5] * 6)
    assert warm[1:] == wanted[1:] and warm[0] in (41, 700)


def test_the_most_likely_tokens(emulate: Emulator) -> None:
    x, picked = rows(3), np.array([2, 0, 2], np.int32)
    x[0, [9, 1000, 521]] = 40  # equals: the lower id comes first
    x[2, 100:VOCAB] = -np.inf
    out = np.zeros((3, MOST), np.int32), np.zeros((3, MOST), np.float32), np.zeros(3, np.float32)
    *_, token, logprob, total = emulate(top_tokens(VOCAB, PADDED), x, picked, *out)
    exact = x[picked, :VOCAB].astype(np.float64)
    best = exact.max(axis=1, keepdims=True)
    log_total = np.log(np.exp(exact - best).sum(axis=1)) + best[:, 0]
    order = np.argsort(-exact, axis=1, kind="stable")[:, :MOST]
    assert token.tolist() == order.tolist()
    assert np.allclose(total, log_total, atol=1e-5)
    values = np.take_along_axis(exact, order, axis=1) - log_total[:, None]
    assert np.allclose(logprob, values, atol=1e-5)


def test_a_vocabulary_of_few_tokens(emulate: Emulator) -> None:
    x = np.full((1, 32), 1e30, np.float32)
    x[0, :3] = 1, 3, 2
    out = np.zeros((1, MOST), np.int32), np.zeros((1, MOST), np.float32), np.zeros(1, np.float32)
    *_, token, _, _ = emulate(top_tokens(3, 32), x, np.zeros(1, np.int32), *out)
    assert token[0].tolist() == [1, 2, 0] + [-1] * (MOST - 3)


def test_edits_in_order_and_masks(emulate: Emulator) -> None:
    x = rows(3)
    place = np.array([[0, 5], [2, 1002], [0, 5], [2, 64]], np.int32)
    number = np.array([[2, 1, 0], [0, 1.5, 0.25], [0, 2, 1], [-9, 3, 0.5]], np.float32)
    masked, bits = np.array([2, 1], np.int32), np.random.default_rng(1).random((2, 1024)) < 0.5
    allowed = np.packbits(bits, axis=1, bitorder="little").view(np.int32)
    *_, found = emulate(edit_logits(VOCAB, PADDED), place, number, masked, allowed, x.copy())
    wanted = x.copy()
    for (row, token), (added, factor, subtracted) in zip(place, number, strict=True):
        v = wanted[row, token] + added
        wanted[row, token] = (v * factor if v < 0 else v / factor) - subtracted
    for row, one in zip(masked, bits, strict=True):
        wanted[row] = np.where(one, wanted[row], -np.inf)
    assert np.allclose(found[:, :VOCAB], wanted[:, :VOCAB], rtol=1e-6)


@pytest.mark.parametrize("kind", ["edits", "masks"])
def test_edits_of_one_kind_alone(emulate: Emulator, kind: str) -> None:
    x, words = rows(1), PADDED // 32
    edits, masks = (1, 0) if kind == "edits" else (0, 1)
    *_, found = emulate(
        edit_logits(VOCAB, PADDED),
        *(np.zeros((edits, 2), np.int32), np.ones((edits, 3), np.float32)),
        *(np.zeros(masks, np.int32), np.zeros((masks, words), np.int32), x.copy()),
    )
    changed = found[0, :VOCAB] != x[0, :VOCAB]
    assert changed.sum() <= 1 if kind == "edits" else changed.all()


def test_machine_code() -> None:
    check_code(sample(128256, 128256), wanted={"LDG", "STG", "SHFL", "BAR"})
    check_code(top_tokens(128256, 128256), wanted={"LDG", "STG", "SHFL", "BAR"})
    check_code(edit_logits(128256, 128256), wanted={"LDG", "STG"})
