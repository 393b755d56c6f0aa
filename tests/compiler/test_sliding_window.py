"""Sliding windows and attention sinks on compiled models, against the NumPy one with a mask."""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest
from decoder_reference import ReferenceDecoder
from pairs import every_other
from test_tiny_llama import EACH_ISA, MEAN, TOKENS, WORST
from tiny_models import TinyModels

from mlc_llm.errors import InvalidField, RequestError
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.model_runner import ModelRunner

WINDOWS = [Window(1), Window(10), Window(16, 4), Window(21, 17), Window(40, 1), Window(1000, 3)]
GREEDY = Sampling(temperature=0, top_logprobs=3)
LONG = np.random.default_rng(1).integers(0, 300, 1700).tolist()
"""Longer than three times the tiny model's context of 512 tokens."""
TEXTS = {"short": TOKENS, "long": LONG}


@cache
def expected(models: TinyModels, text: str, window: Window) -> npt.NDArray[np.float64]:
    reference = ReferenceDecoder(models.path("plain"), window=(window.size, window.sinks))
    return reference.logits(TEXTS[text])


@pytest.mark.one_of(8)
@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("isa", EACH_ISA)
def test_logits_and_chunks(tiny_models: TinyModels, isa: str, window: Window) -> None:
    """All positions, whole and in pieces that give pages back in between."""
    exact = expected(tiny_models, "short", window)
    runner = tiny_models.runner("plain", isa, window=window)
    whole = runner.logits(TOKENS)  # in steps of 64, the most of one step
    difference = np.abs(whole - exact)
    assert difference.max() <= WORST[isa]
    assert difference.mean() <= MEAN[isa]
    for chunk in (1, 7, 16):
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


ENDLESS = [
    pytest.param(window, id=str(window), marks=[] if of_all else pytest.mark.slow)
    for window, of_all in (
        (Window(10, 4), True),
        (Window(40, 140), True),
        (Window(64), False),
        (Window(150, 3), False),
        (Window(130, 128), False),
    )
]


@pytest.mark.one_of(2)
@pytest.mark.parametrize(("isa", "window"), every_other(EACH_ISA, ENDLESS))
def test_a_text_far_beyond_the_context(tiny_models: TinyModels, isa: str, window: Window) -> None:
    """As the reference has it, in few pages, and the same bits in steps of any size."""
    exact = expected(tiny_models, "long", window)
    chunked = window.most_pages(16) + 4
    runner = tiny_models.runner(
        "plain", isa, num_pages=chunked, window=window, context_window=len(LONG)
    )
    whole = runner.logits(LONG)
    difference = np.abs(whole - exact)
    assert difference.max() <= 2 * WORST[isa]  # twenty times as many numbers as elsewhere
    assert difference.mean() <= MEAN[isa]
    for chunk in (1, 61):
        assert runner.logits(LONG, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    runner.check_integrity()


def test_sinks_come_no_farther_away(tiny_models: TinyModels) -> None:
    """Behind a text that repeats a token for longer than the layers reach, nothing changes: not
    where the context ends, nor ever."""
    runner = tiny_models.runner("plain", "portable", window=Window(20, 3), context_window=3000)
    logits = runner.logits([7, 5, 9] + [11] * 2000)
    settled = logits[400:]
    assert np.abs(settled - settled[0]).max() <= 1e-4
    assert np.abs(logits[10] - settled[0]).max() > 1e-2


def test_forks_beyond_the_context(tiny_models: TinyModels) -> None:
    """A fork goes on as its parent does, wherever the steps before ended."""
    runner = tiny_models.runner(
        "plain", "portable", num_pages=40, window=Window(48, 4), context_window=3000
    )
    runner.add_sequence(0)
    for start in range(0, 1500, 50):
        runner.run(Batch([BatchRow(0, LONG[start : start + 50], [])]))
    runner.fork_sequence(0, 1, 1500)
    runner.fork_sequence(0, 2, 1499)
    tail = LONG[1500:1600]
    rows = [BatchRow(0, tail[:60], []), BatchRow(2, [LONG[1499], *tail[:50]], [])]
    runner.run(Batch(rows[:1]))
    runner.run(Batch(rows[1:]))
    for token in tail[:50]:
        runner.run(Batch([BatchRow(1, [token], [])]))
    last = [BatchRow(0, tail[60:], [GREEDY])]
    last += [BatchRow(i, tail[50:], [GREEDY]) for i in (1, 2)]
    samples = [runner.run(Batch([row])).samples[0] for row in last]
    assert samples[0] == samples[1] == samples[2]
    runner.check_integrity()


def test_a_library_is_for_windows_or_not(tiny_models: TinyModels) -> None:
    for has_window in (True, False):
        with pytest.raises(InvalidField, match=r"sliding_window_size.*sliding windows"):
            ModelRunner(
                tiny_models.library("plain", "portable", windowed=has_window),
                tiny_models.weights("plain", "portable"),
                num_pages=4,
                max_num_sequence=1,
                max_batch_tokens=4,
                context_window=64,
                window=None if has_window else Window(10),
            )


def test_a_window_changes_what_is_said(tiny_models: TinyModels) -> None:
    """Else a window that is ignored would pass."""
    plain = tiny_models.runner("plain", "portable").logits(TOKENS)
    for window in WINDOWS[:-1]:
        windowed = tiny_models.runner("plain", "portable", window=window).logits(TOKENS)
        same = window.size + window.sinks
        assert windowed[: window.size].tobytes() == plain[: window.size].tobytes()
        assert np.abs(windowed - plain)[same:].max() > 0.5


@pytest.mark.one_of(2)
@pytest.mark.parametrize("window", WINDOWS[:-1], ids=str)
def test_pages_are_bounded(tiny_models: TinyModels, window: Window) -> None:
    """A sequence far longer than the pages, a token a step; the bits are those of many pages."""
    most = window.most_pages(16)
    short = tiny_models.runner("plain", "portable", num_pages=most, window=window)
    ample = tiny_models.runner("plain", "portable", window=window)
    tokens = [*TOKENS, *TOKENS[::-1], *TOKENS]
    for runner in (short, ample):
        runner.add_sequence(0)
    for token in tokens:
        batch = Batch([BatchRow(0, [token], [GREEDY])])
        assert short.run(batch) == ample.run(batch)
        short.check_integrity()
    assert short.limits.capacity == 512 and short.free_pages >= 1
    short.fork_sequence(0, 1, len(tokens) - 1)
    with pytest.raises(AssertionError, match="pages are gone"):
        short.fork_sequence(0, 2, 20)
    plain = tiny_models.runner("plain", "portable", num_pages=most)
    assert plain.limits.capacity == 16 * most
    plain.add_sequence(0)
    with pytest.raises(RequestError, match="KV pages needed"):
        for start in range(0, 300, 50):
            plain.run(Batch([BatchRow(0, tokens[start : start + 50], [])]))
