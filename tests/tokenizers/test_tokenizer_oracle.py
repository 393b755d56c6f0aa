"""Token ids against Transformers' for the same GGUF file: stored answers, and afresh."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from tokenizer_cases import ANSWERS, BYTE_LEVEL, CASES, SENTENCEPIECE, Case, different
from tokenizer_corpus import corpus

from mlc_llm.loader.gguf import GGUFFile
from mlc_llm.tokenizers import Tokenizer

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@cache
def stored() -> dict[str, Any]:
    answers: dict[str, Any] = json.loads(ANSWERS.read_text(encoding="utf-8"))
    return answers


@pytest.fixture(scope="module")
def model_metadata(default_model: Path) -> Mapping[str, Any]:
    return GGUFFile.open(default_model).metadata


def check(case: Case, default_model: Mapping[str, Any] | None) -> None:
    tokenizer = Tokenizer.from_gguf_metadata(case.metadata(default_model))
    texts = case.texts
    ids = tokenizer.encode_batch(texts, special=not case.plain)
    wrong = different(stored()["ids"][case.name], ids)
    assert [(texts[i][:80], ids[i][:20]) for i in wrong[:5]] == [], f"{len(wrong)} differ"


def test_the_corpus_is_large_and_whole() -> None:
    texts = corpus()
    assert len(texts) >= 2000 and len(set(texts)) == len(texts)
    assert set(stored()["ids"]) == {case.name for case in CASES}
    for text in texts:
        assert text.encode().decode() == text


@pytest.mark.model
@pytest.mark.parametrize("case", BYTE_LEVEL, ids=lambda case: case.name)
def test_byte_level_ids(case: Case, model_metadata: Mapping[str, Any]) -> None:
    check(case, model_metadata)


@pytest.mark.parametrize("case", SENTENCEPIECE, ids=lambda case: case.name)
def test_sentencepiece_ids(case: Case) -> None:
    check(case, None)


def test_a_wrong_answer_would_be_seen() -> None:
    case = SENTENCEPIECE[0]
    tokenizer = Tokenizer.from_gguf_metadata(case.metadata(None))
    ids = tokenizer.encode_batch(case.texts, special=True)
    ids[7] = [*ids[7], 5]
    assert different(stored()["ids"][case.name], ids) == [7]


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_stored_ids_are_those_of_transformers(
    case: Case, model_metadata: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Transformers' own
        pytest.importorskip("transformers")
        from oracle_tokenizer import oracle_answers

        ids = oracle_answers(case, model_metadata)
    assert different(stored()["ids"][case.name], ids) == []
