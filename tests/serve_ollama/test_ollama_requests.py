"""Requests of Ollama's API in OpenAI's words."""

from __future__ import annotations

from typing import Any

import pytest

from mlc_llm.conversation_template import ChatTemplate
from mlc_llm.errors import InvalidField
from mlc_llm.protocol.openai_api_protocol import ChatCompletionRequest, CompletionRequest
from mlc_llm.serve.ollama.fields import ChatRequest, GenerateRequest
from mlc_llm.serve.ollama.translation import translated_chat, translated_prompt
from mlc_llm.serve.openai.translated import Translated

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def chat(**fields: Any) -> Translated[ChatCompletionRequest]:
    return translated_chat(ChatRequest.parse({"messages": HELLO, **fields}), "m", 100)


def generate(**fields: Any) -> Any:
    return translated_prompt(GenerateRequest.parse({"prompt": "hi", **fields}), "m", 100)


def said(found: Translated[Any]) -> list[dict[str, Any]]:
    assert isinstance(found.request, ChatCompletionRequest)
    return [one.model_dump(exclude_none=True) for one in found.request.messages]


def test_options() -> None:
    options = {
        "num_predict": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 7,
        "stop": "x", "repeat_penalty": 1.1, "presence_penalty": 1, "frequency_penalty": -1,
        "num_ctx": 100,
    }  # fmt: skip
    found = chat(options=options, stream=False, logprobs=True, top_logprobs=2)
    given = found.request.generation_config().given
    assert {name: value for name, value in given.items() if name != "n"} == {
        "max_tokens": 5, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "seed": 7,
        "stop_strs": ["x"], "repetition_penalty": 1.1, "presence_penalty": 1.0,
        "frequency_penalty": -1.0, "logprobs": True, "top_logprobs": 2,
    }  # fmt: skip
    assert found.ignored == [] and not found.request.stream


@pytest.mark.parametrize("given", [-1, -2])
def test_no_limit(given: int) -> None:
    assert chat(options={"num_predict": given}).request.max_tokens is None


def test_a_seed_of_minus_one_is_another_one_each_time() -> None:
    """It is the default of Ollama's own options."""
    assert chat(options={"seed": -1}).request.seed is None
    assert chat(options={"seed": 0}).request.seed == 0


def test_streams_unless_told_otherwise() -> None:
    assert chat().request.stream and generate().request.stream


def test_a_conversation_with_thoughts_and_calls() -> None:
    call = {"function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "system", "content": "S"},
        *HELLO,
        {"role": "assistant", "thinking": "hm", "tool_calls": [call]},
        {"role": "tool", "tool_name": "add", "content": "1", "tool_call_id": "c"},
    ]
    found = said(chat(messages=messages, tools=[TOOL]))
    assert found[2]["reasoning_content"] == "hm"
    assert found[2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 1}'}
    assert found[3] == {"role": "tool", "content": "1", "name": "add", "tool_call_id": "c"}


def test_prompts() -> None:
    assert said(generate(system="S")) == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "hi"},
    ]
    raw = generate(raw=True, system="S", logprobs=True, top_logprobs=3)
    assert isinstance(raw.request, CompletionRequest)
    assert (raw.request.prompt, raw.request.logprobs) == ("hi", 3)
    assert raw.ignored == ["system"]


def test_the_form_of_the_answer() -> None:
    schema = {"type": "object"}
    for given, expected in (("json", None), (schema, '{"type": "object"}')):
        form = chat(format=given).request.response_format
        assert form is not None and (form.type, form.json_schema) == ("json_object", expected)
    for empty in ("", None):
        assert chat(format=empty).request.response_format is None


def test_what_has_no_effect_is_listed() -> None:
    found = chat(options={"num_gpu": 1, "mirostat": 2}, think="low", foo=1)
    always = ["foo", "options.num_gpu", "options.mirostat"]
    assert found.ignored_by(None) == [*always, "think"]
    assert found.ignored_by(ChatTemplate("{{ enable_thinking }}")) == always
    assert generate(options={"num_ctx": 10}).ignored_by(None) == []
    assert generate(raw=True, think=True).ignored_by(None) == ["think"]


def test_how_much_the_model_thinks() -> None:
    efforts = {True: "medium", False: "none", "high": "high", None: None}
    for think, effort in efforts.items():
        assert chat(think=think).request.reasoning_effort == effort
        assert generate(think=think).request.reasoning_effort == effort


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (chat, {"options": {"temperature": -1}}, "options.temperature"),
    (chat, {"options": {"num_predict": 0}}, "options.num_predict"),
    (chat, {"options": {"num_predict": -3}}, "options.num_predict"),
    (chat, {"options": {"num_ctx": 101}}, "options.num_ctx"),
    (chat, {"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
    (chat, {"format": "xml"}, "format"),
    (chat, {"think": "much"}, "think"),
    (chat, {"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
    (chat, {"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
    (chat, {"messages": [{**HELLO[0], "images": [1]}]}, "messages[0].images[0]"),
    (chat, {"messages": [*HELLO, {"role": "assistant", "content": "I"}]}, "messages[1].role"),
    (chat, {"messages": [{**HELLO[0], "tool_calls": ["a"]}]}, "messages[0].tool_calls[0]"),
    (
        chat,
        {"messages": [{**HELLO[0], "tool_calls": [{"function": {}}]}]},
        "messages[0].tool_calls[0].function.name",
    ),
    (generate, {"suffix": "b"}, "suffix"),
    (generate, {"template": "{{ .Prompt }}"}, "template"),
    (generate, {"context": [1, 2]}, "context"),
    (generate, {"raw": True, "images": ["a"]}, "images"),
    (generate, {"raw": True, "logprobs": True, "top_logprobs": 6}, "top_logprobs"),
]


@pytest.mark.parametrize(("make", "fields", "path"), WRONG, ids=[path for *_, path in WRONG])
def test_what_is_wrong_is_named(make: Any, fields: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidField) as error:
        make(**fields)
    assert error.value.field == path


def test_images_stand_before_the_text() -> None:
    for found in (
        chat(messages=[{**HELLO[0], "images": ["YWJj"]}]),
        generate(prompt="hello", images=["YWJj"]),
    ):
        content = said(found)[-1]["content"]
        assert [one["type"] for one in content] == ["image_url", "text"]
        assert content[0]["image_url"]["url"] == "data:;base64,YWJj"
