"""`embeddings.create`: shapes on the echo engine, numbers on a tiny model."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from decoder_reference import ReferenceDecoder

from mlc_llm import AsyncMLCEngine, MLCEngine
from mlc_llm.errors import ContextLengthExceeded, InvalidField, UserError
from mlc_llm.protocol.embedding_protocol import EmbeddingRequest, EmbeddingResponse
from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.openai.embeddings import embedding_call, unit_vector

SMALL = {"max_num_sequence": 4, "max_total_sequence_length": 2048, "prefill_chunk_size": 256}
TEXTS = ["The cat sat on the mat.", "A dog", "The cat sat on the mat and slept.", "x"]


def embed(engine: MLCEngine, given: Any, **more: Any) -> EmbeddingResponse:
    return engine.embeddings.create(input=given, **more)


def vectors(answer: EmbeddingResponse) -> Any:
    assert [one.index for one in answer.data] == list(range(len(answer.data)))
    return np.array([one.embedding for one in answer.data])


def test_the_numbers_are_numpys(model: MLCEngine, tiny: Path) -> None:
    """In one batch, and again with a prefix out of the cache."""
    encode = model._client.model.tokenizer.encode_prompt
    exact = np.array([ReferenceDecoder(tiny).hidden(encode(one))[-1] for one in TEXTS])
    exact /= np.linalg.norm(exact, axis=1, keepdims=True)
    for _ in range(2):
        found = vectors(embed(model, TEXTS))
        assert found.shape == exact.shape == (4, 64)
        assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(4), abs=1e-6)
        assert (found * exact).sum(axis=1).min() > 0.9999
    others = exact @ exact.T - 2 * np.eye(4)
    assert others.max() < 0.99, "the texts are too much alike for this test"


def test_what_else_runs_changes_no_bit(model: MLCEngine) -> None:
    alone = [embed(model, one).data[0].embedding for one in TEXTS]
    model.reset()
    assert [one.embedding for one in embed(model, TEXTS).data] == alone
    ids = [model._client.model.tokenizer.encode_prompt(one) for one in TEXTS]
    assert [one.embedding for one in embed(model, ids).data] == alone


def test_forms_of_the_answer(engine: MLCEngine) -> None:
    answer = embed(engine, ["abc", "defg"], model="name", user="me")
    assert answer.model == "name" and answer.pooling == "last_token"
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)
    found = vectors(answer)
    assert found.shape == (2, 8)
    packed = embed(engine, ["abc", "defg"], encoding_format="base64")
    for one, vector in zip(packed.data, found, strict=True):
        assert isinstance(one.embedding, str)
        assert np.frombuffer(base64.b64decode(one.embedding), "<f4") == pytest.approx(vector)


def test_fewer_dimensions_are_the_first_ones(engine: MLCEngine) -> None:
    whole = vectors(embed(engine, "hello there"))[0]
    cut = vectors(embed(engine, "hello there", dimensions=3))[0]
    assert cut == pytest.approx(whole[:3] / np.linalg.norm(whole[:3]), abs=1e-6)
    assert vectors(embed(engine, "hello there", dimensions=8))[0].tolist() == whole.tolist()
    with pytest.raises(InvalidField, match=r"dimensions.*this model's vectors have 8"):
        embed(engine, "hello", dimensions=9)


def test_a_vector_of_zeros_has_no_length() -> None:
    assert unit_vector([0.0, 0.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "more", "word"),
    [
        ("", {}, r"input\[0\]"),
        (["a", ""], {}, r"input\[1\]"),
        ([], {}, "input"),
        ({"a": 1}, {}, "input"),
        (["a"] * 2049, {}, "input"),
        ([[1], ["a"]], {}, r"input\[1\]\[0\]"),
        ([1, 300], {}, "prompt token id"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"encoding_format": "int8"}, "encoding_format"),
    ],
)
def test_wrong_inputs_are_refused(
    engine: MLCEngine, given: Any, more: dict[str, Any], word: str
) -> None:
    with pytest.raises(UserError, match=word):
        embed(engine, given, **more)
    assert len(engine._client._callback.running) == 0


def test_an_input_that_is_too_long_is_refused(engine: MLCEngine) -> None:
    with pytest.raises(ContextLengthExceeded):
        embed(engine, ["a", "b" * 5000])
    assert vectors(embed(engine, "b")).shape == (1, 8)


def test_a_decoder_is_not_pooled_in_another_way_than_its_files_say(engine: MLCEngine) -> None:
    request = EmbeddingRequest(input="a")
    known = engine._client.model
    assert known.pooling == "last_token"
    assert len(embedding_call(request, "id", known).parts) == 1
    with pytest.raises(UserError, match="the files of this decoder ask for mean pooling"):
        embedding_call(request, "id", known._replace(pooling="mean"))


def test_a_decoder_makes_no_embeddings_unless_somebody_says_so(tiny: Path) -> None:
    """Neither its files nor its settings do: the refusal names the setting."""
    with MLCEngine(str(tiny), engine_config=SMALL) as made:
        with pytest.raises(UserError, match=r"decoder do not say .* with pooling 'last_token'"):
            embed(made, "a")
        assert made.completions.create(prompt="a", max_tokens=1).choices[0].finish_reason


def test_a_decoder_is_opened_with_its_last_token_alone(tiny: Path) -> None:
    with pytest.raises(InvalidField, match=r"pooling.*'mean'.*'last_token' alone"):
        MLCEngine(str(tiny), engine_config={**SMALL, "pooling": "mean"})
    with pytest.raises(InvalidField, match=r"pooling.*should be one of last_token, cls, mean"):
        EngineConfig.of({"pooling": "last"})


def test_an_unknown_parameter_is_a_mistake_of_the_program(engine: MLCEngine) -> None:
    with pytest.raises(TypeError, match="pooling"):
        engine.embeddings.create(input="a", pooling="mean")  # type: ignore[call-arg]


def test_many_inputs_at_once(async_engine: AsyncMLCEngine) -> None:
    """More than the engine computes at a time."""

    async def ask() -> list[EmbeddingResponse]:
        calls = [
            async_engine.embeddings.create(input=[f"{i} {j}" for j in range(100)]) for i in range(3)
        ]
        return await asyncio.gather(*calls)

    for i, answer in enumerate(asyncio.run(ask())):
        expected = [unit_vector(counts(f"{i} {j}")).tolist() for j in range(100)]
        assert [one.embedding for one in answer.data] == expected


def counts(text: str) -> list[float]:
    """What the echo engine's hidden vector is."""
    return [float(sum(byte % 8 == i for byte in text.encode())) for i in range(8)]
