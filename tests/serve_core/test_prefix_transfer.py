"""A prompt that one engine has computed is not computed again by another one."""

from __future__ import annotations

from dataclasses import replace

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.errors import RequestError, TransferRefused
from mlc_llm.runtime.limits import Window
from mlc_llm.runtime.transfer import Transfer
from mlc_llm.testing.fake_runner import FakeRunner

PROMPT = prompt_of(50)
BEGINNING = PROMPT[:-1]


def exported(runner: FakeRunner | None = None) -> Transfer:
    """What an engine has of the prompt when it has computed one token."""
    harness = Harness(runner or FakeRunner())
    harness.add("a", PROMPT, max_tokens=1)
    harness.run()
    found = harness.core.export_prefix(BEGINNING)
    harness.core.check_integrity()
    return found


def test_a_prompt_is_computed_once() -> None:
    harness = Harness(FakeRunner(max_num_sequence=2))
    harness.core.import_prefix(BEGINNING, exported())
    harness.core.check_integrity()
    harness.add("a", PROMPT, max_tokens=20, n=2)
    seen = harness.run()["a"]
    assert seen.tokens == alone("a", PROMPT, max_tokens=20, n=2)
    assert seen.usage is not None
    assert seen.usage["prompt_tokens_details"]["cached_tokens"] == len(BEGINNING)
    assert harness.core.metrics()["prefill_tokens_sum"] < 3


def test_the_same_beginning_is_taken_in_once() -> None:
    harness, transfer = Harness(FakeRunner(max_num_sequence=2)), exported()
    for _ in range(3):
        harness.core.import_prefix(BEGINNING, transfer)
    assert harness.core.prefix_cache.num_sequences == 1


def test_other_salts_do_not_find_it() -> None:
    harness = Harness(FakeRunner(max_num_sequence=2))
    harness.core.import_prefix(BEGINNING, exported(), "other")
    harness.add("a", PROMPT, max_tokens=2)
    usage = harness.run()["a"].usage
    assert usage is not None and not usage["prompt_tokens_details"]["cached_tokens"]
    with pytest.raises(TransferRefused, match="does not have all"):
        harness.core.export_prefix(BEGINNING, "third")


def test_kept_sequences_make_room_and_running_ones_do_not() -> None:
    harness, transfer = Harness(FakeRunner(num_pages=6, max_num_sequence=2)), exported()
    harness.add("kept", prompt_of(40, 100), max_tokens=1)
    harness.run()
    harness.core.import_prefix(BEGINNING, transfer)
    assert harness.core.prefix_cache.num_sequences == 1
    harness.core.check_integrity()
    harness.reset()
    harness.add("runs", prompt_of(40, 100), max_tokens=40)
    harness.step()
    with pytest.raises(TransferRefused, match="no room"):
        harness.core.import_prefix(BEGINNING, transfer)
    harness.core.check_integrity()
    assert harness.run()["runs"].tokens == alone("runs", prompt_of(40, 100), max_tokens=40)


def test_what_was_altered_is_refused_and_the_prompt_is_computed_here() -> None:
    harness, transfer = Harness(FakeRunner()), exported()
    wrong = replace(transfer, tensors=(transfer.tensors[0] + 1,))
    for one, length in ((wrong, len(BEGINNING)), (transfer, 48)):
        with pytest.raises(TransferRefused):
            harness.core.import_prefix(BEGINNING[:length], one)
    harness.core.check_integrity()
    harness.add("a", PROMPT, max_tokens=20)
    assert harness.run()["a"].tokens == alone("a", PROMPT, max_tokens=20)


def test_a_runner_without_pages_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, transfer = Harness(FakeRunner()), exported()

    def fails(*_: object) -> None:
        raise RequestError("no")

    monkeypatch.setattr(FakeRunner, "import_pages", fails)
    with pytest.raises(RequestError, match="no"):
        harness.core.import_prefix(BEGINNING, transfer)
    harness.core.check_integrity()
    assert not harness.core.prefix_cache.num_sequences


def test_models_with_a_window_take_over_nothing() -> None:
    harness = Harness(FakeRunner(window=Window(20, 3)))
    with pytest.raises(TransferRefused, match="windows"):
        harness.core.import_prefix(BEGINNING, exported())
    with pytest.raises(TransferRefused, match="windows"):
        harness.core.export_prefix(BEGINNING)
