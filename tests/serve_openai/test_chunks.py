"""From outputs to chunks, from chunks to JSON and to whole answers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlc_llm.errors import ContextLengthExceeded, InvalidField
from mlc_llm.protocol.openai_api_protocol import (
    ChatCompletionResponse,
    ChatCompletionStreamResponse,
)
from mlc_llm.serve.data import RequestStreamOutput
from mlc_llm.serve.openai.answers import WholeAnswer
from mlc_llm.serve.openai.chunk_json import ChunkJSON
from mlc_llm.serve.openai.chunks import AnswerStream, ChoicePiece, Chunk, refusal_chunks
from mlc_llm.testing.byte_tokenizer import byte_tokenizer_metadata
from mlc_llm.tokenizers import Tokenizer

USAGE = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7, "extra": {"ttft_s": 0.5}}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf_metadata(byte_tokenizer_metadata())


def output(*ids: list[int], reasons: Any = None, **more: Any) -> RequestStreamOutput:
    return RequestStreamOutput(
        "a", list(ids), more.pop("logprobs", None), reasons or [None] * len(ids), **more
    )


def chunks_of(tokenizer: Tokenizer, *outputs: RequestStreamOutput) -> list[Chunk | None]:
    stream = AnswerStream(tokenizer, len(outputs[0].group_delta_token_ids))
    return [stream.put(one) for one in outputs]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text)


def test_outputs_become_chunks(tokenizer: Tokenizer) -> None:
    smile = ids(tokenizer, "\N{GRINNING FACE}")
    found = chunks_of(
        tokenizer,
        output(ids(tokenizer, "a"), ids(tokenizer, "b")),
        output(smile[:2], []),
        output(smile[2:], [], reasons=[None, "stop"]),
        output(ids(tokenizer, "c"), [], reasons=["length", None]),
        RequestStreamOutput.usage("a", json.dumps(USAGE)),
    )
    assert found == [
        Chunk([ChoicePiece(0, "a", None, None), ChoicePiece(1, "b", None, None)]),
        None,
        Chunk([ChoicePiece(0, "\N{GRINNING FACE}", None, None), ChoicePiece(1, "", "stop", None)]),
        Chunk([ChoicePiece(0, "c", "length", None)]),
        Chunk(
            (), None, json.dumps({**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}})
        ),
    ]


def test_an_error_ends_its_choices_with_the_reason(tokenizer: Tokenizer) -> None:
    (found,) = chunks_of(tokenizer, RequestStreamOutput.finished("a", 2, "error", "half \ud800"))
    assert found is not None and found.error is not None
    assert (found.error.message, found.error.type) == ("half ?", "request_error")
    assert [piece.finish_reason for piece in found.pieces] == ["error", "error"]


def logprob(token: str) -> str:
    entry = {"token": token, "logprob": -0.5, "bytes": list(token.encode())}
    return json.dumps({**entry, "top_logprobs": [entry]})


@pytest.fixture
def answer() -> list[Chunk]:
    """Two choices, with log-probabilities and characters that JSON has to escape."""
    return [
        Chunk([ChoicePiece(0, 'a"\n', None, [logprob('a"\n')]), ChoicePiece(1, "x", None, [])]),
        Chunk([ChoicePiece(1, "y", "length", [logprob("x"), logprob("y")])]),
        Chunk([ChoicePiece(0, "\N{GRINNING FACE}", "stop", [])]),
        Chunk(
            (), None, json.dumps({**USAGE, "completion_tokens_details": {"reasoning_tokens": 0}})
        ),
    ]


@pytest.mark.parametrize("name", ["a", 'b"}', "\n", "\N{GRINNING FACE}"])
def test_chunks_are_written_as_json(name: str, answer: list[Chunk]) -> None:
    writer = ChunkJSON(name, "half \ud800")
    texts = [writer.text(chunk) for chunk in answer]
    assert all(text.isascii() for text in texts)
    read = [ChatCompletionStreamResponse.parse_text(text) for text in texts]
    assert {(one.id, one.model, one.object) for one in read} == {
        (name, "half ?", "chat.completion.chunk")
    }
    pieces = [
        [
            (choice.index, choice.delta.content, choice.finish_reason, choice.logprobs is not None)
            for choice in one.choices
        ]
        for one in read
    ]
    assert pieces == [
        [(piece.choice, piece.text, piece.finish_reason, True) for piece in chunk.pieces]
        for chunk in answer
    ]
    assert [one.usage is not None for one in read] == [False, False, False, True]
    assert read[-1].usage is not None and read[-1].usage.total_tokens == 7


def test_a_whole_answer_is_collected_from_chunks(answer: list[Chunk]) -> None:
    whole = WholeAnswer(2)
    for chunk in answer:
        assert not whole.is_whole
        whole.put(chunk)
    assert whole.is_whole and whole.error is None
    found = whole.response("a", "m")
    assert (found.id, found.model, found.object) == ("a", "m", "chat.completion")
    said = [
        (choice.index, choice.message.content, choice.finish_reason) for choice in found.choices
    ]
    assert said == [(0, 'a"\n\N{GRINNING FACE}', "stop"), (1, "xy", "length")]
    tokens = [
        [one.token for one in choice.logprobs.content]
        for choice in found.choices
        if choice.logprobs
    ]
    assert tokens == [['a"\n'], ["x", "y"]]
    assert found.usage is not None and found.usage.extra == USAGE["extra"]
    assert ChatCompletionResponse.parse_text(found.model_dump_json()) == found


def test_a_whole_answer_has_log_probabilities_only_where_they_were_asked_for() -> None:
    whole = WholeAnswer(1)
    whole.put(Chunk([ChoicePiece(0, "a", "stop", None)]))
    whole.put(Chunk((), None, json.dumps(USAGE)))
    assert whole.response("a", "").choices[0].logprobs is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (InvalidField("n", 0, "too few"), ("invalid_request_error", "n", None)),
        (
            ContextLengthExceeded(9, 8),
            ("invalid_request_error", None, "context_length_exceeded"),
        ),
        (ZeroDivisionError(), ("server_error", None, None)),
    ],
)
def test_a_refusal_is_a_whole_answer(error: Exception, said: tuple[Any, ...]) -> None:
    whole = WholeAnswer(1)
    for chunk in refusal_chunks(error):
        assert not whole.is_whole
        whole.put(chunk)
    assert whole.is_whole and whole.error is not None
    message = str(error) or "ZeroDivisionError"
    assert (whole.error.message, whole.error.type, whole.error.param, whole.error.code) == (
        message,
        *said,
    )
    found = whole.response("a", "m")
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == (message, "error")
    assert found.usage is not None and found.usage.total_tokens == 0
