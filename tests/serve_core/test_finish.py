"""Finish rules: what is shown, where text is cut, and what goes with each token."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from core_harness import VOCAB, Harness, PieceTokenizer, prompt_of

from mlc_llm.runtime.batch import Sampled, Sampling
from mlc_llm.testing.fake_runner import FakeRunner
from mlc_llm.testing.fake_sampling import fake_logits


class Scripted(FakeRunner):
    """Says the given tokens, then letters."""

    def __init__(self, script: list[int], prompt_length: int) -> None:
        super().__init__()
        self.script, self.prompt_length = script, prompt_length

    def _sample(self, tokens: Sequence[int], sampling: Sampling) -> Sampled:
        sampled = super()._sample(tokens, sampling)
        at = len(tokens) - self.prompt_length
        token = self.script[at] if at < len(self.script) else ord("a")
        return Sampled(token, sampled.logprob, sampled.top)


def say(script: list[int], model_stops: tuple[int, ...] = (), **config: Any) -> Harness:
    harness = Harness(Scripted(script, 3), stop_token_ids=model_stops)
    harness.add("a", [1, 2, 3], **{"max_tokens": 12, **config})
    harness.run()
    return harness


@pytest.mark.parametrize(
    ("script", "stops", "shown"),
    [
        ([256, 257, 258], ["wor"], b"Hello, "),  # inside one token
        ([256, 257, 258], ["world"], b"Hello, "),  # over two tokens
        ([256, 257, 258], [", world!"], b"Hello"),  # from a token's first byte
        ([256, 257, 258], ["Hello"], b""),
        ([97, 260, 98], ["STOP"], b"axx"),  # text on both sides in one token
        ([97, 261, 80, 98], ["STOP"], b"a"),
        ([97, 261, 261, 80, 98], ["STOP"], b"aSTO"),  # a beginning that came to nothing
        ([256, 257, 258], ["ld", "lo"], b"Hel"),  # the first that appears
        (list("né!".encode()), ["é"], b"n"),
    ],
)
def test_text_ends_right_before_the_stop_string(
    script: list[int], stops: list[str], shown: bytes
) -> None:
    harness = say(script, stop_strs=stops, logprobs=True)
    seen = harness.seen["a"]
    assert harness.text("a") == shown and seen.reasons == ["stop"]
    assert len(seen.logprobs[0]) == len(seen.tokens[0])


def test_no_part_of_a_stop_string_is_ever_streamed() -> None:
    harness = Harness(Scripted([97, 83, 84, 79, 80, 97], 1))
    harness.add("a", [1], stop_strs=["STOP"], max_tokens=12)
    while not harness.core.is_idle:
        harness.step()
        assert b"S" not in harness.text("a")


def test_held_back_tokens_come_out_at_the_end() -> None:
    harness = say([97, 83, 84], stop_strs=["STOP"], max_tokens=3, logprobs=True)
    assert harness.text("a") == b"aST" and harness.seen["a"].reasons == ["length"]
    harness = say([97, 83, 84, 299], (299,), stop_strs=["STOP"], logprobs=True)
    assert harness.text("a") == b"aST" and harness.seen["a"].reasons == ["stop"]
    assert len(harness.seen["a"].logprobs[0]) == 3


def test_stop_tokens_are_never_shown() -> None:
    for stops, config in (((299,), {}), ((), {"stop_token_ids": [299]})):
        seen = say([97, 98, 299, 99], stops, logprobs=True, **config).seen["a"]
        assert seen.tokens == [[97, 98]] and seen.reasons == ["stop"]
        assert len(seen.logprobs[0]) == 2
        assert seen.usage is not None and seen.usage["completion_tokens"] == 3


def test_ignore_eos_disables_stop_tokens_and_strings() -> None:
    seen = say(
        [97, 299, 259], (299,), stop_strs=["STOP"], max_tokens=4, debug_config={"ignore_eos": True}
    ).seen["a"]
    assert seen.tokens == [[97, 299, 259, 97]] and seen.reasons == ["length"]


def test_sequence_length_ends_a_sequence() -> None:
    harness = Harness(FakeRunner(context_window=20))
    harness.add("a", prompt_of(12), max_tokens=-1)
    assert len(harness.run()["a"].tokens[0]) == 8


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logprobs_are_those_of_the_raw_logits(temperature: float) -> None:
    harness = Harness()
    config = {"temperature": temperature, "logprobs": True, "top_logprobs": 5, "seed": 2}
    harness.add("a", prompt_of(6), n=3, max_tokens=5, **config)
    seen = harness.run()["a"]
    for tokens, logprobs in zip(seen.tokens, seen.logprobs, strict=True):
        for at, (token, text) in enumerate(zip(tokens, logprobs, strict=True)):
            logits = fake_logits([*prompt_of(6), *tokens[:at]], VOCAB)
            expected = logits - np.log(np.exp(logits).sum())
            entry = json.loads(text)
            assert entry["logprob"] == pytest.approx(expected[token], abs=1e-4)
            assert bytes(entry["bytes"]) == PieceTokenizer().token_bytes(token)
            top = [one["logprob"] for one in entry["top_logprobs"]]
            assert top == pytest.approx(sorted(expected, reverse=True)[:5], abs=1e-4)


def test_penalties_see_the_counts_of_their_own_sequence() -> None:
    harness = Harness(Scripted([97, 97, 98], 3))
    harness.add("a", [1, 2, 3], max_tokens=4, frequency_penalty=0.5)
    harness.run()
    rows = [row for batch in harness.runner.batches for row in batch.rows]
    (sampling,) = rows[-1].samplings
    assert sampling.token_counts == {97: 3, 98: 1}
