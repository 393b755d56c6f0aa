"""The older API's stream is written without models; it says what the models would."""

from __future__ import annotations

import json

import pytest

from mlc_llm.errors import RequestError
from mlc_llm.serve.openai.chunks import ChoicePiece, Chunk
from mlc_llm.serve.openai.completions import CompletionChunks, CompletionHead
from mlc_llm.serve.server.routes.completion import CompletionStream

TOKEN = '{"token": "a", "logprob": -0.5, "bytes": [97], "top_logprobs": []}'
PROMPT = '{"token": "b", "logprob": null, "bytes": [98], "top_logprobs": null}'
USAGE = '{"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}'
NEWS: list[tuple[int, Chunk]] = [
    (0, Chunk([], prompt_logprobs=[PROMPT])),
    (0, Chunk([ChoicePiece(0, 'é"\n\u2028', None, None), ChoicePiece(1, "", "stop", None)])),
    (1, Chunk([ChoicePiece(0, "<b>", None, [TOKEN])])),
    (0, Chunk([ChoicePiece(0, "end", "length", [TOKEN, TOKEN])])),
    (0, Chunk([], usage_json=USAGE)),
    (1, Chunk([ChoicePiece(0, "", "length", None), ChoicePiece(1, "x", "stop", None)])),
    (1, Chunk([], usage_json=USAGE)),
]


def chunks(*, include_usage: bool) -> CompletionChunks:
    head = CompletionHead("cmpl-1", 'a "model"', 2, ["b", "echo"], "fp")
    head.created = 7
    return CompletionChunks(head, include_usage=include_usage)


@pytest.mark.parametrize("include_usage", [True, False])
def test_it_writes_what_the_models_would(include_usage: bool) -> None:
    stream, plain = (
        CompletionStream(chunks(include_usage=include_usage)),
        chunks(include_usage=include_usage),
    )
    found = [json.loads(text) for part, one in NEWS for text in stream.texts(part, one)]
    expected = [made.model_dump() for part, one in NEWS for made in plain.of(part, one)]
    assert found == expected
    assert len(found) == 4 + include_usage
    assert found[0]["choices"][0]["text"] == 'bé"\n\u2028'
    assert found[0]["choices"][0]["logprobs"]["token_logprobs"] == [None]


def test_scores_of_a_prompt_are_kept_until_its_choices_have_begun() -> None:
    made = chunks(include_usage=False)
    scores = Chunk([ChoicePiece(0, "a", None, None)], prompt_logprobs=[PROMPT])
    list(made.of(1, scores))
    assert list(made._prompt_logprobs) == [1]
    (one,) = made.of(1, Chunk([ChoicePiece(1, "b", None, None)]))
    assert one.choices[0].logprobs is not None and not made._prompt_logprobs


def test_an_abort_is_an_error() -> None:
    stream = CompletionStream(chunks(include_usage=False))
    with pytest.raises(RequestError, match="cmpl-1 was ended"):
        list(stream.texts(0, Chunk([ChoicePiece(0, "", "abort", None)])))
