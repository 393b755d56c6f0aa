"""One request on a scripted engine: text, timings, limits, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from mlc_llm.cli.interrupt import catch_interrupt
from mlc_llm.cli.session import Session
from mlc_llm.errors import ContextLengthExceeded, RequestError, UnsupportedModel, UserError
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.testing.byte_tokenizer import IM_END, IM_START, byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer

CONFIG = GenerationConfig(max_tokens=100)


def test_text_streams_in_whole_characters(session: Any) -> None:
    pieces: list[str] = []
    answer = session.answer([1, 2, 3], CONFIG, pieces.append)
    assert answer.text == "".join(pieces) == "Hello, wörld."
    assert "ö" in pieces
    assert answer.finish_reason == "stop"
    assert (answer.prompt_tokens, answer.completion_tokens) == (3, 14)


def test_timings(session: Any) -> None:
    timings = session.answer([1], CONFIG).timings
    assert timings.load_s == 0.25
    assert 0 < timings.ttft_s <= timings.total_s
    assert timings.decode_tokens_per_s > 0


def test_no_token_no_rates(session: Any, engine: Any) -> None:
    engine.text = ""
    answer = session.answer([1], CONFIG)
    assert answer.timings.ttft_s is None
    assert answer.timings.decode_tokens_per_s is None
    assert json.loads(answer.asjson())["timings"]["ttft_s"] is None


def test_each_request_has_its_own_id(session: Any, engine: Any) -> None:
    session.answer([1], CONFIG)
    session.answer([1], CONFIG)
    assert len({request.request_id for request in engine.requests}) == 2


def test_a_prompt_longer_than_the_context(session: Any, engine: Any) -> None:
    with pytest.raises(ContextLengthExceeded, match="200"):
        session.answer([1] * 200, CONFIG)
    assert engine.requests == []


def test_an_error_of_the_request_is_raised(session: Any, engine: Any) -> None:
    engine.reason = "error"
    with pytest.raises(RequestError, match="not numbers"):
        session.answer([1], CONFIG)
    engine.reason = "stop"
    assert session.answer([1], CONFIG).text == "Hello, wörld."


def test_an_error_of_the_reader_takes_the_request_off(session: Any, engine: Any) -> None:
    def broken(text: str) -> None:
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        session.answer([1], CONFIG, broken)
    assert engine.aborted == ["cli-1"]
    assert session.answer([1], CONFIG).text == "Hello, wörld."


def test_ctrl_c_stops_between_steps(session: Any, engine: Any) -> None:
    engine.on_step = lambda step: os.kill(os.getpid(), signal.SIGINT) if step == 4 else None
    answer = session.answer([1], CONFIG)
    assert answer.finish_reason == "abort"
    assert answer.text == "Hello"
    assert answer.completion_tokens == 5


@pytest.fixture
def python_handles_interrupts() -> Iterator[None]:
    """As it does unless it was started where interrupts are ignored: behind `nohup` or `&`."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("python_handles_interrupts")
def test_a_second_ctrl_c_is_not_held_back() -> None:
    with pytest.raises(KeyboardInterrupt), catch_interrupt() as interrupt:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupt
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_which_limit_was_met(session: Any) -> None:
    assert "--max-tokens" in session.why_cut(session.answer([1], GenerationConfig(max_tokens=2)))
    assert "context of 200" in session.why_cut(session.answer([1] * 190, CONFIG))


def test_a_model_that_cannot_chat(session: Any) -> None:
    session.model.chat_template = None
    session.model.is_encoder = True
    with pytest.raises(UserError, match="this model is an encoder, which writes no text"):
        Session.chat_ids(session, [{"role": "user", "content": "Hi"}])
    session.model.is_encoder = False
    with pytest.raises(UnsupportedModel, match=r"scripted has no chat template.*--raw"):
        Session.chat_ids(session, [{"role": "user", "content": "Hi"}])


def test_raw_ids_start_as_the_model_wants(session: Any) -> None:
    assert session.raw_ids("ab") == [97, 98]
    metadata = byte_tokenizer_metadata() | {"tokenizer.ggml.add_bos_token": True}
    session.model.tokenizer = Tokenizer.from_gguf_metadata(metadata)
    assert session.raw_ids("ab<|im_end|>") == [IM_START, 97, 98, IM_END]
    with pytest.raises(ContextLengthExceeded):
        session.raw_ids("x" * 10_000_000)
