"""Chunks of the engine as responses, streamed and whole."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlc_llm.errors import RequestError
from mlc_llm.protocol.error_protocol import ErrorBody
from mlc_llm.protocol.generation_config import GenerationConfig
from mlc_llm.serve.openai.chunks import CallPiece, ChoicePiece, Chunk
from mlc_llm.serve.responses.answers import Head, WholeResponse
from mlc_llm.serve.responses.events import ResponseEvents
from mlc_llm.serve.responses.fields import ResponsesRequest

USAGE = Chunk(
    (),
    None,
    '{"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17,'
    ' "prompt_tokens_details": {"cached_tokens": 4},'
    ' "completion_tokens_details": {"reasoning_tokens": 2}}',
)
LOGPROB = '{"token": "Y", "logprob": -0.5, "bytes": [89], "top_logprobs": []}'
PIECES = [
    ChoicePiece(0, "", None, None, reasoning="hm"),
    ChoicePiece(0, 'Yes "ü"', None, [LOGPROB]),
    ChoicePiece(0, "!", None, None),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, "call_1", "add", "")]),
    ChoicePiece(0, "", None, None, calls=[CallPiece(0, None, None, '{"a": 1}')]),
    ChoicePiece(0, "", "tool_calls", None),
]
TEXT = {
    "type": "output_text",
    "text": 'Yes "ü"!',
    "annotations": [],
    "logprobs": [json.loads(LOGPROB)],
}
OUTPUT = [
    {"id": "rs_1_0", "status": "completed", "type": "reasoning", "summary": [],
     "content": [{"type": "reasoning_text", "text": "hm"}]},
    {"id": "msg_1_1", "status": "completed", "type": "message", "role": "assistant",
     "content": [TEXT]},
    {"id": "fc_1_2", "status": "completed", "type": "function_call", "call_id": "call_1",
     "name": "add", "arguments": '{"a": 1}'},
]  # fmt: skip
ORDER = [
    "created", "in_progress",
    "output_item.added", "content_part.added", "reasoning_text.delta",
    "reasoning_text.done", "content_part.done", "output_item.done",
    "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
    "output_text.done", "content_part.done", "output_item.done",
    "output_item.added", "function_call_arguments.delta", "function_call_arguments.done",
    "output_item.done",
    "completed",
]  # fmt: skip


def head(**fields: Any) -> Head:
    body = ResponsesRequest.parse({"input": "q", **fields})
    return Head(body, "resp_1", "m", GenerationConfig(temperature=0.5))


def chunks(*pieces: ChoicePiece) -> list[Chunk]:
    return [*(Chunk([one]) for one in pieces), USAGE]


def events_of(*pieces: ChoicePiece) -> list[dict[str, Any]]:
    source = ResponseEvents(head())
    found = [*source.begin(), *(e for chunk in chunks(*pieces) for e in source.of(0, chunk))]
    made = [json.loads(one.data) for one in found]
    assert [one["type"] for one in made] == [one.name for one in found]
    assert [one["sequence_number"] for one in made] == list(range(len(made)))
    return made


def whole_of(*pieces: ChoicePiece, **fields: Any) -> dict[str, Any]:
    whole = WholeResponse(head(**fields))
    for chunk in chunks(*pieces):
        whole.put(0, chunk)
    return whole.response().model_dump()


def test_the_order_of_events() -> None:
    assert [one["type"].removeprefix("response.") for one in events_of(*PIECES)] == ORDER


def test_events_say_where_they_belong() -> None:
    found = events_of(*PIECES)
    assert found[0]["response"]["status"] == "in_progress"
    assert found[-1]["response"]["output"] == OUTPUT
    for one in found[2:-1]:
        own = OUTPUT[one["output_index"]]
        assert one.get("item_id", own["id"]) == own["id"]
        if "item" in one:
            assert one["item"]["id"] == own["id"] and one["item"]["type"] == own["type"]
        has_part = "content_part" in one["type"] or "_text" in one["type"]
        assert ("content_index" in one) == has_part
    done = [one["item"] for one in found if one["type"] == "response.output_item.done"]
    assert done == OUTPUT
    added = [one["item"] for one in found if one["type"] == "response.output_item.added"]
    assert [one.get("content", one.get("arguments")) for one in added] == [[], [], ""]
    deltas = [one for one in found if one["type"] == "response.output_text.delta"]
    assert [one["delta"] for one in deltas] == ['Yes "ü"', "!"]
    assert [one["logprobs"] for one in deltas] == [[json.loads(LOGPROB)], []]
    (arguments,) = [one for one in found if one["type"].endswith("arguments.done")]
    assert (arguments["name"], arguments["arguments"]) == ("add", '{"a": 1}')


def test_a_whole_answer() -> None:
    found = whole_of(*PIECES, store=True, metadata={"a": "b"}, instructions="S")
    assert found["output"] == OUTPUT and found["status"] == "completed"
    assert found["usage"] == {
        "input_tokens": 10,
        "input_tokens_details": {"cached_tokens": 4},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 17,
    }
    assert found["store"] is False and found["temperature"] == 0.5
    assert found["metadata"] == {"a": "b"} and found["instructions"] == "S"


def test_an_answer_that_was_cut() -> None:
    pieces = [PIECES[0], ChoicePiece(0, "Ye", "length", None)]
    found = whole_of(*pieces)
    assert found["status"] == "incomplete"
    assert found["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [one["status"] for one in found["output"]] == ["completed", "incomplete"]
    events = events_of(*pieces)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-2]["item"] == events[-1]["response"]["output"][-1]


def test_failures() -> None:
    with pytest.raises(RequestError, match="broke"):
        WholeResponse(head()).put(0, Chunk((), ErrorBody(message="broke")))
    first, last = ResponseEvents(head()).failed(500, "broke")
    response = json.loads(first.data)["response"]
    assert first.name == "response.failed" and response["status"] == "failed"
    assert response["error"] == {"code": "server_error", "message": "broke"}
    assert last.name == "error" and json.loads(last.data)["error"]["message"] == "broke"


def test_a_call_of_a_namespace_has_both_names() -> None:
    """Codex finds its tool by the two."""
    function = {"type": "function", "name": "add"}
    tools = [{"type": "namespace", "name": "mcp__math__", "tools": [function]}]
    call = ChoicePiece(0, "", None, None, calls=[CallPiece(0, "call_1", "mcp__math__add", "{}")])
    events = ResponseEvents(head(tools=tools))
    seen = [event for chunk in chunks(call, PIECES[-1]) for event in events.of(0, chunk)]
    named = [json.loads(one.data) for one in seen if "mcp__math__" in one.data]
    names = {"namespace": "mcp__math__", "name": "add"}
    assert [one["type"].removeprefix("response.") for one in named] == [
        "output_item.added", "function_call_arguments.done", "output_item.done", "completed",
    ]  # fmt: skip
    for one in named[:3]:
        assert names.items() <= one.get("item", one).items()
    assert names.items() <= named[3]["response"]["output"][0].items()
