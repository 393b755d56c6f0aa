"""A prompt that one engine computes and another one answers (`disagg_config`). The fake runner."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from core_harness import Harness, alone, prompt_of

from mlc_llm.errors import InvalidField, UserError
from mlc_llm.runtime.limits import Window
from mlc_llm.testing.fake_runner import FakeRunner

PROMPT = prompt_of(50)
LAST = len(PROMPT) - 1


def asked(harness: Harness, name: str, kind: str, prompt: list[int] = PROMPT, **fields: Any) -> Any:
    """The request's tokens and usage."""
    config = {"kind": kind, **{f"kv_{key}": value for key, value in fields.items()}}
    harness.add(name, prompt, max_tokens=20, debug_config={"disagg_config": config})
    return harness.run()[name]


def received(harness: Harness, name: str = "r", end: int = -1) -> dict[str, Any]:
    return dict(asked(harness, name, "prepare_receive", window_end=end).usage["extra"])


def sent(ticket: str, end: int = -1, begin: int | None = 0) -> str:
    """The pages that another engine gives for a ticket."""
    seen = asked(
        Harness(FakeRunner()),
        "s",
        "remote_send",
        append_metadata=ticket,
        window_begin=begin,
        window_end=end,
    )
    assert seen.tokens == [[]] and seen.usage["completion_tokens"] == 0
    return str(seen.usage["extra"]["kv_append_metadata"])


@pytest.mark.parametrize(("end", "length"), [(-1, LAST), (33, 33), (-20, 30), (1, 1)])
def test_the_answer_is_that_of_one_engine(end: int, length: int) -> None:
    harness = Harness(FakeRunner())
    found = received(harness, end=end)
    assert found["prefix_matched_length"] == 0
    pages = sent(found["kv_append_metadata"], end)
    seen = asked(harness, "a", "start_generation", window_begin=end, append_metadata=pages)
    assert seen.tokens == alone("a", PROMPT, max_tokens=20)
    assert seen.usage["prompt_tokens_details"]["cached_tokens"] == length
    assert "kv_transfer_refused" not in seen.usage["extra"]
    harness.core.check_integrity()
    assert received(harness, "again")["prefix_matched_length"] == LAST


def test_nothing_is_sent_of_what_is_there() -> None:
    harness = Harness(FakeRunner())
    harness.add("before", PROMPT, max_tokens=1)
    harness.run()
    found = received(harness)
    assert found["prefix_matched_length"] == LAST
    other = Harness(FakeRunner())
    ticket, begin = found["kv_append_metadata"], found["prefix_matched_length"]
    seen = asked(
        other, "s", "remote_send", append_metadata=ticket, window_begin=begin, window_end=-1
    )
    assert "kv_append_metadata" not in seen.usage["extra"]
    assert not other.core.metrics()["prefill_tokens_sum"]
    seen = asked(harness, "a", "start_generation", window_begin=begin)
    assert seen.tokens == alone("a", PROMPT, max_tokens=20)


def _changed(pages: str, *, at: int) -> str:
    data = bytearray(base64.b64decode(pages))
    data[at] ^= 1
    return base64.b64encode(bytes(data)).decode()


def _with_head(pages: str, **more: Any) -> str:
    head, _, rest = base64.b64decode(pages).partition(b"\n")
    return base64.b64encode(
        json.dumps({**json.loads(head), **more}).encode() + b"\n" + rest
    ).decode()


def _cut(pages: str, count: int) -> str:
    return base64.b64encode(base64.b64decode(pages)[:-count]).decode()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda pages: _changed(pages, at=-1), "altered"),
        (lambda pages: _changed(pages, at=5), "altered|form"),
        (lambda pages: _cut(pages, 1), "altered"),
        (lambda pages: _cut(pages, 4), "altered"),
        (lambda pages: _cut(pages, 100), "altered"),
        (lambda pages: pages[:-3], "no base64"),
        (lambda _: "", "altered"),
        (lambda _: "é", "no base64"),
        (lambda pages: _with_head(pages, identity="other"), "another model"),
        (lambda pages: _with_head(pages, length=48), "48 tokens"),
        (lambda pages: _with_head(pages, tokens="0"), "another prompt"),
        (lambda pages: _with_head(pages, tensors=[["object", [1]]]), "altered"),
        (lambda pages: _with_head(pages, tensors=[["int32", [1 << 60, 1 << 60]]]), "altered"),
        (lambda pages: _with_head(pages, tensors=[["int32", [-1]]]), "altered"),
        (lambda pages: _with_head(pages, tensors=3), "altered"),
        (lambda pages: _with_head(pages, form="mlc-llm-pages-9"), "form"),
    ],
)
def test_wrong_pages_are_named_and_the_prompt_is_computed_here(wrong: Any, words: str) -> None:
    harness = Harness(FakeRunner())
    pages = wrong(sent(received(harness)["kv_append_metadata"]))
    seen = asked(harness, "a", "start_generation", window_begin=-1, append_metadata=pages)
    assert seen.tokens == alone("a", PROMPT, max_tokens=20)
    assert seen.usage["prompt_tokens_details"]["cached_tokens"] == 0
    assert any(one in seen.usage["extra"]["kv_transfer_refused"] for one in words.split("|"))
    harness.core.check_integrity()


def test_pages_of_another_prompt_of_the_same_length_are_refused() -> None:
    harness, other = Harness(FakeRunner()), prompt_of(50, 100)
    pages = sent(received(harness)["kv_append_metadata"])
    seen = asked(harness, "a", "start_generation", other, window_begin=-1, append_metadata=pages)
    assert seen.tokens == alone("a", other, max_tokens=20)
    assert "another prompt" in seen.usage["extra"]["kv_transfer_refused"]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"kind": "prepare_receive", "kv_window_end": 50}, "kv_window_end"),
        ({"kind": "prepare_receive", "kv_window_end": -50}, "kv_window_end"),
        ({"kind": "start_generation", "kv_window_begin": 50}, "kv_window_begin"),
        ({"kind": "remote_send", "kv_window_end": -1, "kv_append_metadata": "e30="}, "metadata"),
        ({"kind": "remote_send", "kv_window_end": -1, "kv_append_metadata": "x"}, "metadata"),
    ],
)
def test_what_does_not_fit_the_prompt_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidField, match=words):
        Harness(FakeRunner()).add("a", PROMPT, debug_config={"disagg_config": config})


def test_a_ticket_of_another_prompt_is_refused() -> None:
    ticket = received(Harness(FakeRunner()))["kv_append_metadata"]
    fields = {"append_metadata": ticket, "window_end": -1}
    with pytest.raises(InvalidField, match="another prompt or window"):
        asked(Harness(FakeRunner()), "a", "remote_send", prompt_of(50, 100), **fields)


def test_models_with_windows_and_several_answers_are_refused() -> None:
    config = {"disagg_config": {"kind": "prepare_receive", "kv_window_end": -1}}
    with pytest.raises(UserError, match="windows"):
        Harness(FakeRunner(window=Window(20, 3))).add("a", PROMPT, debug_config=config)
    with pytest.raises(InvalidField, match="should be 1 with"):
        Harness(FakeRunner()).add("a", PROMPT, debug_config=config, n=2)


def test_an_aborted_sender_gives_no_pages() -> None:
    ticket = received(Harness(FakeRunner()))["kv_append_metadata"]
    harness = Harness(FakeRunner())
    wanted = {"kind": "remote_send", "kv_window_end": -1, "kv_append_metadata": ticket}
    harness.add("s", PROMPT, debug_config={"disagg_config": wanted})
    harness.abort("s")
    seen = harness.run()["s"]
    assert seen.usage is not None and "kv_append_metadata" not in seen.usage.get("extra", {})
    harness.core.check_integrity()
