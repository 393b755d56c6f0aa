"""Chunks of the engine as messages of Anthropic's API, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.serve.anthropic.answers import WholeMessage
from mlc_llm.serve.anthropic.errors import error_body
from mlc_llm.serve.anthropic.events import MessageEvents
from mlc_llm.serve.data import FinishReason
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk
from mlc_llm.serve.openai.prompt_size import PromptSize

USAGE = Chunk(
    (),
    None,
    '{"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17,'
    ' "prompt_tokens_details": {"cached_tokens": 4}}',
)
PIECES = [
    ChoicePiece(0, "", None, None, reasoning="hm"),
    ChoicePiece(0, 'Yes "ü"', None, None),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, "call_1", "add", "")]),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, None, None, '{"a": 1}')]),
    ChoicePiece(0, "", "tool_calls", None),
]
CONTENT = [
    {"type": "thinking", "thinking": "hm", "signature": ""},
    {"type": "text", "text": 'Yes "ü"'},
    {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}},
]
COUNTS = {
    "input_tokens": 6,
    "cache_creation_input_tokens": 0,
    "cache_read_input_tokens": 4,
    "output_tokens": 7,
}


def chunks(*pieces: ChoicePiece) -> list[Chunk]:
    return [*(Chunk([one]) for one in pieces), USAGE]


def events_of(*pieces: ChoicePiece) -> list[dict[str, Any]]:
    size = PromptSize()
    size.tokens = 10
    source = MessageEvents("msg_1", "m", size, ["END"])
    found = [*source.begin(), *(e for chunk in chunks(*pieces) for e in source.of(0, chunk))]
    made = [json.loads(one.data) for one in found]
    assert [one["type"] for one in made] == [one.name for one in found]
    return made


def whole_of(*pieces: ChoicePiece) -> dict[str, Any]:
    whole = WholeMessage("msg_1", "m", ["END"])
    for chunk in chunks(*pieces):
        whole.put(0, chunk)
    return whole.response().model_dump()


def test_the_order_of_events() -> None:
    start, *middle, delta, stop = events_of(*PIECES)
    assert start["message"]["usage"]["input_tokens"] == 10 and start["message"]["content"] == []
    assert stop == {"type": "message_stop"}
    assert delta["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert delta["usage"] == COUNTS
    kinds = [(one["type"].removeprefix("content_block_"), one["index"]) for one in middle]
    assert kinds == [
        ("start", 0), ("delta", 0), ("delta", 0), ("stop", 0),
        ("start", 1), ("delta", 1), ("stop", 1),
        ("start", 2), ("delta", 2), ("stop", 2),
    ]  # fmt: skip
    opened = [one["content_block"] for one in middle if one["type"] == "content_block_start"]
    assert opened == [
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "text", "text": ""},
        {"type": "tool_use", "id": "call_1", "name": "add", "input": {}},
    ]
    deltas = [one["delta"] for one in middle if one["type"] == "content_block_delta"]
    assert deltas == [
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": ""},
        {"type": "text_delta", "text": 'Yes "ü"'},
        {"type": "input_json_delta", "partial_json": '{"a": 1}'},
    ]


def test_a_whole_answer() -> None:
    found = whole_of(*PIECES)
    assert found["content"] == CONTENT and found["usage"] == COUNTS
    assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)
    assert (found["id"], found["type"], found["role"]) == ("msg_1", "message", "assistant")


@pytest.mark.parametrize(
    ("reason", "stop_str", "expected"),
    [
        ("stop", None, "end_turn"),
        ("stop", "END", "stop_sequence"),
        ("stop", "<|im_end|>", "end_turn"),  # of the chat template
        ("length", None, "max_tokens"),
    ],
)
def test_why_an_answer_ends(reason: FinishReason, stop_str: str | None, expected: str) -> None:
    last = ChoicePiece(0, "a", reason, None, stop_str=stop_str)
    found = whole_of(last)
    own = stop_str if stop_str == "END" else None
    assert (found["stop_reason"], found["stop_sequence"]) == (expected, own)
    assert events_of(last)[-2]["delta"] == {"stop_reason": expected, "stop_sequence": own}
    call = ChoicePiece(0, "", None, None, calls=[CallPiece(0, "c", "add", "{}")])
    if stop_str == "<|im_end|>":
        assert whole_of(call, last)["stop_reason"] == "tool_use"


def test_arguments_that_were_cut_are_not_lost() -> None:
    call = ChoicePiece(0, "", "length", None, calls=[CallPiece(0, "c", "add", '{"a": ')])
    found = whole_of(call)
    assert found["content"][0]["input"] == {"unparsed": '{"a": '}
    assert found["stop_reason"] == "max_tokens"
    empty = ChoicePiece(0, "", "tool_calls", None, calls=[CallPiece(0, "c", "add", "")])
    assert whole_of(empty)["content"][0]["input"] == {}


def test_failures() -> None:
    with pytest.raises(RequestError, match="broke"):
        WholeMessage("msg_1", "m").put(0, Chunk((), ErrorBody(message="broke")))
    (event,) = MessageEvents("msg_1", "m", PromptSize()).failed(500, "broke")
    assert event.name == "error"
    assert json.loads(event.data) == {
        "type": "error",
        "error": {"type": "api_error", "message": "broke"},
    }


def test_the_words_for_a_prompt_that_is_too_long() -> None:
    ours = (
        "This model's maximum context length is 4096 tokens. Request prompt has at least 5000 "
        "tokens in total, larger than the model input length limit 4095."
    )
    error = error_body(400, ours)["error"]
    assert isinstance(error, dict) and error["type"] == "invalid_request_error"
    assert error["message"].startswith("prompt is too long: 5000 tokens > 4096 maximum.")
