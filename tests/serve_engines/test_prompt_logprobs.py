"""`echo` with log-probabilities: shapes on the echo engine, numbers on a tiny model."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_reference import ReferenceDecoder

from mlc_llm import AsyncMLCEngine, MLCEngine
from mlc_llm.protocol.openai_api_protocol import CompletionLogProbs, CompletionResponse

TEXTS = ["The cat sat on the mat, and the dog did not mind it. " * 8, "é\U0001f600 x", "a"]
ROUNDING = 0.03
"""What the fastest kernels of any machine may differ by from float64."""


def create(engine: MLCEngine, prompt: Any, **more: Any) -> CompletionResponse:
    found = engine.completions.create(prompt=prompt, echo=True, **more)
    assert isinstance(found, CompletionResponse)
    return found


def ids_of(engine: MLCEngine, text: str) -> list[int]:
    return engine._client.model.tokenizer.encode_prompt(text)


def lists(answer: CompletionResponse, index: int = 0) -> CompletionLogProbs:
    found = answer.choices[index].logprobs
    assert found is not None
    return found


def softmax_log(path: Path, ids: list[int]) -> Any:
    logits = ReferenceDecoder(path).logits(ids)
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def test_the_numbers_are_numpys(model: MLCEngine, tiny: Path) -> None:
    """Of several prompts at once; the last token is a generated one."""
    answer = create(model, TEXTS, logprobs=2, max_tokens=1, temperature=0)
    for i, text in enumerate(TEXTS):
        ids, found = ids_of(model, text), lists(answer, i)
        expected = softmax_log(tiny, ids)
        assert len(found.tokens) == len(ids) + 1 and found.token_logprobs[0] is None
        assert found.top_logprobs[0] is None and answer.choices[i].text.startswith(text)
        for place, row in enumerate(expected):
            own, top = found.token_logprobs[place + 1], found.top_logprobs[place + 1]
            exact = row[ids[place + 1]] if place + 1 < len(ids) else row.max()
            assert own == pytest.approx(exact, abs=ROUNDING)
            assert top is not None and own in top.values()
            assert max(top.values()) == pytest.approx(row.max(), abs=ROUNDING)


def test_all_forms_say_the_same(model: MLCEngine) -> None:
    """Text or ids, alone or among others, streamed or whole, before and behind a cached prefix."""
    text = TEXTS[0]
    asked: dict[str, Any] = {"logprobs": 1, "temperature": 0}
    whole = create(model, text, max_tokens=3, **asked)
    expected = lists(whole)
    ids = ids_of(model, text)
    for prompt in (ids, [ids], [text]):
        assert lists(create(model, prompt, max_tokens=3, **asked)) == expected
    other = create(model, [TEXTS[1], text], max_tokens=3, **asked)
    assert lists(other, 1) == expected
    chunks = list(
        model.completions.create(prompt=text, echo=True, stream=True, max_tokens=3, **asked)
    )
    pieces = [chunk.choices[0] for chunk in chunks if isinstance(chunk, CompletionResponse)]
    assert "".join(one.text for one in pieces) == whole.choices[0].text
    streamed = [one.logprobs for one in pieces if one.logprobs is not None]
    for name in CompletionLogProbs.model_fields:
        found = [item for one in streamed for item in getattr(one, name)]
        assert found == getattr(expected, name)
    none = create(model, text, max_tokens=0, **asked)
    assert none.choices[0].text == text and none.choices[0].finish_reason == "length"
    assert lists(none).token_logprobs == expected.token_logprobs[:-3]
    assert none.usage is not None and none.usage.completion_tokens == 0


def test_several_answers_have_the_same_prompt(model: MLCEngine) -> None:
    answer = create(model, TEXTS[1], n=3, logprobs=0, max_tokens=2, seed=1, temperature=1.0)
    count = len(ids_of(model, TEXTS[1]))
    first = lists(answer).token_logprobs[:count]
    assert [lists(answer, i).token_logprobs[:count] for i in range(3)] == [first] * 3
    assert all(len(lists(answer, i).tokens) == count + 2 for i in range(3))


def test_offsets_are_places_in_the_text(engine: MLCEngine) -> None:
    """On the echo engine, where every token is certain."""
    answer = create(engine, "añb", logprobs=1)
    found, text = lists(answer), answer.choices[0].text
    assert text == "añbañb" and len(found.tokens) == 8
    assert found.text_offset == [0, 1, 1, 2, 3, 4, 4, 5]
    assert found.token_logprobs == [None, *[0.0] * 7]


def test_without_echo_there_is_nothing_of_the_prompt(engine: MLCEngine) -> None:
    found = engine.completions.create(prompt="ab", logprobs=1)
    assert isinstance(found, CompletionResponse) and lists(found).tokens == ["a", "b"]
    assert create(engine, "ab").choices[0].logprobs is None


def test_the_other_engine_says_the_same(async_engine: AsyncMLCEngine) -> None:
    async def ask() -> CompletionResponse:
        found = await async_engine.completions.create(
            prompt=["ab", "c"], echo=True, logprobs=1, max_tokens=0
        )
        assert isinstance(found, CompletionResponse)
        return found

    answer = asyncio.run(ask())
    assert [one.text for one in answer.choices] == ["ab", "c"]
    assert lists(answer).token_logprobs == [None, 0.0]
    assert lists(answer, 1).token_logprobs == [None]
