"""`/v1/rerank`, and embeddings of an encoder, over HTTP."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from server_harness import Running, running
from tiny_encoders import CLS, CONTEXT, SEP, TOKENS, TinyEncoder

from mlc_llm.serve.config import EngineConfig
from mlc_llm.serve.server.pool.openers import EngineOpener

ENCODER = TinyEncoder(labels=1)
DOCUMENTS = ["the cat sat", "a dog", "sleep !", "the mat"]


@pytest.fixture(scope="module")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = ENCODER.write(tmp_path_factory.mktemp("rank") / "tiny.gguf")
    config = EngineConfig(mode="server", kernels="reference")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        with running(models=[str(path)], opener=EngineOpener("cpu", config)) as made:
            yield made


def ids(text: str) -> list[int]:
    return [TOKENS.index(word) for word in text.split()]


def expected(query: str, document: str) -> float:
    start = [CLS, *ids(query), SEP]
    (score,) = ENCODER.scores([*start, *ids(document), SEP], len(start))
    return 1 / (1 + math.exp(-score))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_the_best_documents_come_first(ranker: Running, path: str) -> None:
    body = {"model": "default", "query": "the cat", "documents": DOCUMENTS}
    found = ranker.call("POST", path, body).json
    exact = sorted(((expected("the cat", one), i) for i, one in enumerate(DOCUMENTS)), reverse=True)
    assert [one["index"] for one in found["results"]] == [i for _, i in exact]
    for one, (score, _) in zip(found["results"], exact, strict=True):
        assert one["relevance_score"] == pytest.approx(score, abs=1e-4)
    tokens = sum(5 + len(ids(one)) for one in DOCUMENTS)
    assert found["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    best = {**body, "top_n": 1, "return_documents": True, "documents": [{"text": DOCUMENTS[0]}]}
    (one,) = ranker.call("POST", path, best).json["results"]
    assert one["document"] == {"text": DOCUMENTS[0]}
    ranker.wait_idle()


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"query": ""}, "query"),
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": "a"}, "documents"),
        ({"documents": ["a", 1]}, "documents[1]"),
        ({"documents": [{"title": "a"}]}, "documents[0].text"),
        ({"documents": ["a", ""]}, "documents[1]"),
        ({"documents": ["a", "  "]}, "documents[1]"),
        ({"query": " \n"}, "query"),
        ({"documents": ["a"] * 2049}, "documents"),
        ({"top_n": 0}, "top_n"),
        ({"return_documents": 1}, "return_documents"),
    ],
)
def test_wrong_fields_are_named(ranker: Running, changed: dict[str, Any], word: str) -> None:
    body = {"query": "the cat", "documents": DOCUMENTS, **changed}
    reply = ranker.call("POST", "/v1/rerank", body)
    assert reply.status == 400 and reply.error["param"] == word
    ranker.wait_idle()


def test_a_pair_that_is_too_long_is_refused(ranker: Running) -> None:
    body = {"query": "cat " * 60, "documents": ["a", "dog " * 70]}
    reply = ranker.call("POST", "/v1/rerank", body)
    assert reply.status == 400 and reply.error["code"] == "context_length_exceeded"
    ranker.wait_idle()


def test_other_calls_of_an_encoder(ranker: Running) -> None:
    made = ranker.call("POST", "/v1/embeddings", {"input": ["the cat"]}).json
    assert made["pooling"] == "mean" and len(made["data"][0]["embedding"]) == 64
    for reply in (
        ranker.chat("hello"),
        ranker.call("POST", "/v1/completions", {"prompt": "hello"}),
        ranker.call("POST", "/v1/completions", {"prompt": "hello", "stream": True}),
    ):
        assert reply.status == 400 and "this model is an encoder" in reply.error["message"]
    whole = ranker.call("POST", "/tokenize", {"prompt": "the cat"}).json
    assert whole["tokens"] == [CLS, *ids("the cat"), SEP]
    plain = ranker.call(
        "POST", "/tokenize", {"prompt": "the cat", "add_special_tokens": False}
    ).json
    assert plain["tokens"] == ids("the cat")
    shown = ranker.call("POST", "/api/show", {"model": "default"}).json
    assert shown["capabilities"] == ["embedding"]
    (entry,) = ranker.call("GET", "/v1/models").json["data"]
    assert (entry["max_input_tokens"], entry["max_output_tokens"]) == (CONTEXT, 0)
    ranker.wait_idle()


def test_a_model_that_compares_nothing(tmp_path: Path) -> None:
    with running() as server:
        body = {"query": "the cat", "documents": DOCUMENTS}
        reply = server.call("POST", "/v1/rerank", body)
        assert reply.status == 400 and "this model compares no texts" in reply.error["message"]
