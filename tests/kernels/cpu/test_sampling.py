"""Sampling, against a plain float64 reference with a sort.

Where float32 sums may fall on either side of a cut, both tokens are right; everywhere else there is
one answer.
"""

from __future__ import annotations

import numpy as np
import pytest
from kernel_tools import Array, build, each_isa
from sampling_reference import Options, right

from mlc_llm.backends.cpu.isa import Isa
from mlc_llm.kernels.cpu.sampling import CHUNK, NOT_FINITE, sample

VOCAB = 1003
PADDED = 1024


def draw(isa: Isa, logits: Array, options: list[Options], uniform: Array) -> Array:
    """A token a row; what lies in the padding must not matter, so it is large."""
    s, vocab = logits.shape
    padded = -(-vocab // CHUNK) * CHUNK
    x = np.full((s, padded), 1e30, np.float32)
    x[:, :vocab] = logits
    numbers = [(o.temperature, o.top_p, o.min_p, u) for o, u in zip(options, uniform, strict=True)]
    token = np.full(s, -7, np.int32)
    scratch = np.full((s, padded + padded // CHUNK), np.nan, np.float32)
    build(isa, sample, vocab, padded)(
        x,
        np.asarray(numbers, np.float32),
        np.asarray([o.top_k for o in options], np.int32),
        scratch,
        token,
    )
    return token


def random_logits(seed: int = 0, vocab: int = VOCAB) -> Array:
    return (np.random.default_rng(seed).standard_normal(vocab) * 3).astype(np.float32)


CASES = {
    "plain": Options(),
    "cold": Options(temperature=0.3),
    "hot": Options(temperature=2.5),
    "top-p": Options(top_p=0.9),
    "tight top-p": Options(top_p=0.05),
    "top-p of nothing": Options(top_p=0.0),
    "top-k": Options(top_k=40),
    "top-k of one": Options(top_k=1),
    "top-k of more than all": Options(top_k=5000),
    "min-p": Options(min_p=0.1),
    "min-p of one": Options(min_p=1.0),
    "all": Options(temperature=1.3, top_p=0.8, min_p=0.02, top_k=50),
    "top-k before top-p": Options(top_p=0.5, top_k=7),
}


@pytest.mark.parametrize("name", CASES)
@each_isa()
def test_against_a_sort(isa: Isa, name: str) -> None:
    rng = np.random.default_rng(4)
    uniform = np.concatenate([[0.0, np.float32(1 - 2**-24)], rng.random(62)]).astype(np.float32)
    logits = np.stack([random_logits(i % 4) for i in range(64)])
    result = draw(isa, logits, [CASES[name]] * 64, uniform)
    for row, token, u in zip(logits, result, uniform, strict=True):
        assert int(token) in right(row, CASES[name], float(u))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("uniform", [1.0, np.nan, -1.0])
@each_isa()
def test_a_number_outside_its_range_draws_a_kept_token(isa: Isa, uniform: float, name: str) -> None:
    """No number may lead out of the row: from 1 on the last kept token, below 0 the first."""
    logits = np.stack([random_logits(i) for i in range(3)])
    result = draw(isa, logits, [CASES[name]] * 3, np.full(3, uniform, np.float32))
    for row, token in zip(logits, result, strict=True):
        assert int(token) in right(row, CASES[name], 0.0 if uniform < 0 else 1.0)


@each_isa()
def test_a_row_is_its_own(isa: Isa) -> None:
    """Equal numbers give equal tokens, whatever else is in the batch."""
    options = [*CASES.values(), Options(temperature=0)]
    logits = np.stack([random_logits(i) for i in range(len(options))])
    uniform = np.random.default_rng(6).random(len(options)).astype(np.float32)
    together = draw(isa, logits, options, uniform)
    for i in range(len(options)):
        alone = draw(isa, logits[i : i + 1], [options[i]], uniform[i : i + 1])
        assert alone[0] == together[i]


@pytest.mark.one_of(3)
@pytest.mark.parametrize("vocab", [1, 5, 16, 31, 32, 33, 300, 1003])
@each_isa()
def test_any_vocabulary_size(isa: Isa, vocab: int) -> None:
    logits = np.stack([random_logits(1, vocab)] * 3)
    logits[:, -1] += 3  # the very last entry counts like the others
    options = [Options(temperature=0), Options(), Options(top_p=0.7, top_k=3)]
    uniform = np.array([0.5, 0.3, 0.99], np.float32)
    result = draw(isa, logits, options, uniform)
    assert result[0] == logits[0].argmax()
    for i in (1, 2):
        assert int(result[i]) in right(logits[i], options[i], float(uniform[i]))


@pytest.mark.parametrize("temperature", [0.0, 1e-5, 1e-4, 1.0])
@each_isa()
def test_ties(isa: Isa, temperature: float) -> None:
    """Greedy takes the first of equals; a draw keeps all of them, also at the edge of top-k."""
    logits = np.full(VOCAB, -2.0, np.float32)
    logits[[100, 200, 1001, 1002]] = 5
    uniform = np.linspace(0, 0.999, 16, dtype=np.float32)
    options = [Options(temperature=temperature, top_k=2)] * 16
    result = draw(isa, np.stack([logits] * 16), options, uniform)
    expected = {100} if temperature <= 1e-5 else {100, 200, 1001, 1002}
    assert {*result.tolist()} == expected


@each_isa()
def test_masked_tokens_are_never_drawn(isa: Isa) -> None:
    """A grammar's mask is -inf; one token left must be taken whatever the numbers say."""
    logits = np.full((40, VOCAB), -np.inf, np.float32)
    allowed = [3, 17, 1002]
    logits[:, allowed] = [1, 2, -60]
    logits[39, [3, 17]] = -np.inf
    uniform = np.linspace(0, 1 - 2**-24, 40).astype(np.float32)
    plain = [Options()] * (38 - len(CASES))
    options = [*CASES.values(), *plain, Options(temperature=0), Options()]
    result = draw(isa, logits, options, uniform)
    assert {*result[:38].tolist()} <= {3, 17}
    assert result[38] == 17
    assert result[39] == 1002


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("place", [0, 15, 16, 1000, 1002])
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf], ids=["nan", "-nan", "inf"])
@each_isa()
def test_broken_rows_say_so(isa: Isa, bad: float, place: int, temperature: float) -> None:
    logits = np.stack([random_logits(i) for i in range(3)])
    logits[1, place] = bad
    result = draw(isa, logits, [Options(temperature)] * 3, np.full(3, 0.5, np.float32))
    assert (result == NOT_FINITE).tolist() == [False, True, False]


@each_isa()
def test_nothing_allowed_says_so(isa: Isa) -> None:
    logits = np.full((2, VOCAB), -np.inf, np.float32)
    logits[0, 7] = -3e38  # finite: the only token
    result = draw(isa, logits, [Options()] * 2, np.full(2, 0.5, np.float32))
    assert result.tolist() == [7, NOT_FINITE]


@each_isa()
def test_far_apart_logits(isa: Isa) -> None:
    """A tiny temperature divides huge differences: the best token, never NaN."""
    logits = np.array([[0, 80, 3e37, -3e38, 2.9e37] * 40], np.float32)
    for o in (Options(temperature=2e-5), Options(), Options(temperature=100)):
        result = draw(isa, logits, [o], np.array([0.0], np.float32))
        assert result[0] == 2


@each_isa()
def test_frequencies(isa: Isa) -> None:
    """Even draws hit every token in proportion to its probability, to a draw and a bit."""
    logits = np.array([0.0, 1.0, 2.0, -1.0, 0.5] + [-np.inf] * 27, np.float32)
    count = 2000
    uniform = ((np.arange(count) + 0.5) / count).astype(np.float32)
    result = draw(isa, np.stack([logits] * count), [Options()] * count, uniform)
    share = np.exp(logits) / np.exp(logits).sum()
    assert np.abs(np.bincount(result, minlength=32) - count * share).max() <= 1.01
