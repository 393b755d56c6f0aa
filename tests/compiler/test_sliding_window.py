"""Sliding windows and attention sinks on compiled models, against the NumPy one with a mask."""

from __future__ import annotations

import numpy as np
import pytest
from llama_reference import ReferenceLlama
from test_tiny_llama import EACH_ISA, MEAN, TOKENS, WORST
from tiny_models import TinyModels

from mlc_llm.errors import RequestError
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling, Window

WINDOWS = [Window(1), Window(10), Window(16, 4), Window(21, 17), Window(40, 1), Window(1000, 3)]
GREEDY = Sampling(temperature=0, top_logprobs=3)


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("isa", EACH_ISA)
def test_logits_and_chunks(tiny_models: TinyModels, isa: str, window: Window) -> None:
    """All positions, whole and in pieces that give pages back in between."""
    exact = ReferenceLlama(tiny_models.path("plain"), (window.size, window.sinks)).logits(TOKENS)
    runner = tiny_models.runner("plain", isa, window=window)
    whole = runner.logits(TOKENS)  # in steps of 64, the most of one step
    difference = np.abs(whole - exact)
    assert difference.max() <= WORST[isa]
    assert difference.mean() <= MEAN[isa]
    for chunk in (1, 7, 16):
        assert runner.logits(TOKENS, chunk=chunk).tobytes() == whole.tobytes(), f"by {chunk}"
    runner.check_integrity()
    assert runner.free_pages == runner.limits.num_pages


def test_a_window_changes_what_is_said(tiny_models: TinyModels) -> None:
    """Else a window that is ignored would pass."""
    plain = tiny_models.runner("plain", "portable").logits(TOKENS)
    for window in WINDOWS[:-1]:
        windowed = tiny_models.runner("plain", "portable", window=window).logits(TOKENS)
        same = window.size + window.sinks
        assert windowed[: window.size].tobytes() == plain[: window.size].tobytes()
        assert np.abs(windowed - plain)[same:].max() > 0.5


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
