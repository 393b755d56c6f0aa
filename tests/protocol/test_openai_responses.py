"""Answers: their keys, finite log-probabilities, the finish reasons at each boundary."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from pydantic import ValidationError

from mlc_llm.errors import InvalidField
from mlc_llm.protocol.mlc_chat_config import MLCChatConfig
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
    CompletionResponse,
    ListResponse,
    LogProbsContent,
    UsageInfo,
)


def chunk(**choice: Any) -> dict[str, Any]:
    delta = {"role": "assistant", "content": "Hi"}
    return {"id": "1", "choices": [{"index": 0, "delta": delta, **choice}], "model": "m"}


@pytest.mark.parametrize("reason", [None, "stop", "length", "tool_calls", "abort", "error"])
def test_a_chunk_takes_every_reason_of_the_json_boundary(reason: str | None) -> None:
    found = ChatCompletionStreamResponse.model_validate(chunk(finish_reason=reason))
    assert found.choices[0].finish_reason == reason
    assert found.choices[0].delta.content == "Hi"
    assert found.object == "chat.completion.chunk"
    assert isinstance(found.created, int)


def test_an_invented_reason_is_refused() -> None:
    with pytest.raises(ValidationError):
        ChatCompletionStreamResponse.model_validate(chunk(finish_reason="tired"))


def test_the_usage_chunk_has_an_empty_list_of_choices() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3, "extra": {"a": [1]}}
    found = ChatCompletionStreamResponse.model_validate({"id": "1", "choices": [], "usage": usage})
    assert found.usage is not None
    assert found.usage.extra == {"a": [1]}
    with pytest.raises(ValidationError):
        ChatCompletionStreamResponse.model_validate({"id": "1", "choices": None})


@pytest.mark.parametrize("value", [-math.inf, -1e9])
def test_log_probabilities_are_finite_in_json(value: float) -> None:
    item = LogProbsContent(token="a", logprob=value, bytes=[97])
    assert json.loads(item.model_dump_json())["logprob"] == -9999.0


@pytest.mark.parametrize("value", [math.nan, 1.0, math.inf])
def test_what_is_no_log_probability_is_refused(value: float) -> None:
    with pytest.raises(ValidationError):
        LogProbsContent(token="a", logprob=value, bytes=None)


def test_whole_answers_round_trip() -> None:
    chat = {
        "id": "1",
        "choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": "Hi"}}],
        "usage": {"prompt_tokens": 1},
    }
    one = ChatCompletionResponse.model_validate(chat)
    assert ChatCompletionResponse.model_validate_json(one.model_dump_json()) == one
    logprobs = {
        "token_logprobs": [None, -1.5],
        "top_logprobs": [None, {"a": -1.5}],
        "tokens": ["a"],
    }
    text = {"id": "2", "choices": [{"text": "Hi", "logprobs": logprobs}]}
    two = CompletionResponse.model_validate(text)
    assert CompletionResponse.model_validate_json(two.model_dump_json()) == two
    assert two.object == "text_completion"


def test_the_model_list() -> None:
    found = ListResponse.model_validate({"data": [{"id": "m", "max_model_len": 5}]})
    assert (found.object, found.data[0].object, found.data[0].max_model_len) == ("list", "model", 5)
    assert UsageInfo().total_tokens == 0


CONFIG = {
    "model_type": "llama",
    "quantization": "q4f16_1",
    "model_config": {"hidden_size": 64},
    "vocab_size": 320,
    "conv_template": {"roles": {"user": "U"}, "seps": ["\n"]},
    "temperature": 0.7,
    "eos_token_id": [2, 3],
}


def test_a_chat_config_file() -> None:
    found = MLCChatConfig.parse({**CONFIG, "new": 1})
    assert found.model_config_ == {"hidden_size": 64}
    assert found.eos_token_ids() == {2, 3}
    assert found.default_generation_config().given == {"temperature": 0.7}
    assert found.unknown_fields() == ["new"]
    assert MLCChatConfig.parse_text(found.model_dump_json(by_alias=True)) == found


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("vocab_size", 2**31),
        ("vocab_size", 0),
        ("active_vocab_size", -1),
        ("context_window_size", 1.5),
        ("temperature", math.nan),
        ("repetition_penalty", 0),
        ("conv_template", {"roles": {}, "seps": []}),
        ("model_type", None),
        ("eos_token_id", "x"),
    ],
)
def test_a_broken_chat_config_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(InvalidField, match=field):
        MLCChatConfig.parse({**CONFIG, field: value}, "mlc-chat-config.json")
