"""Engines on a tiny random encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from encoder_folders import folder_of, pooled
from tiny_encoders import CLS, CONTEXT, HIDDEN, SEP, TOKENS, TinyEncoder

from mlc_llm import MLCEngine
from mlc_llm.errors import ContextLengthExceeded, InvalidField, MLCError, UserError
from mlc_llm.serve.sync_engine import SyncMLCEngine

REFERENCE: dict[str, Any] = {"kernels": "reference"}
TEXTS = ["The cat sat on the mat.", "a dog", "Dogs sleeping!", "x"]
IDS = [
    [*(TOKENS.index(one) for one in text.split())]
    for text in ("the cat sat on the mat .", "a dog", "dog ##s sleep ##ing !", "x")
]
ENCODER = TinyEncoder(labels=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLC_LLM_HOME", str(tmp_path_factory.mktemp("cache")))
        folder = tmp_path_factory.mktemp("encoders")
        ENCODER.write(folder / "mean.gguf")
        TinyEncoder(labels=1, pooling="cls").write(folder / "cls.gguf")
        TinyEncoder(labels=1, pooling="rank").write(folder / "rank.gguf")
        SyncMLCEngine(str(folder / "mean.gguf"), "cpu", engine_config=REFERENCE)  # compiles it
        yield folder


@pytest.fixture
def encoder(files: Path) -> Iterator[MLCEngine]:
    with MLCEngine(str(files / "mean.gguf"), engine_config=REFERENCE) as made:
        yield made


def vectors(engine: MLCEngine, given: Any, **more: Any) -> list[Any]:
    return [one.embedding for one in engine.embeddings.create(input=given, **more).data]


def test_embeddings_are_numpys(encoder: MLCEngine) -> None:
    answer = encoder.embeddings.create(input=TEXTS)
    assert answer.pooling == "mean"
    assert answer.usage.prompt_tokens == sum(len(ids) + 2 for ids in IDS)
    for ids, one in zip(IDS, answer.data, strict=True):
        exact = ENCODER.pooled([CLS, *ids, SEP])
        assert np.dot(np.array(one.embedding, np.float64), exact) == pytest.approx(1, abs=1e-7)
    whole = [one.embedding for one in answer.data]
    assert vectors(encoder, [[CLS, *ids, SEP] for ids in IDS]) == whole, "token ids"
    (cut,) = vectors(encoder, TEXTS[0], dimensions=3)
    first = np.array(whole[0][:3])
    assert cut == pytest.approx(first / np.linalg.norm(first), abs=1e-6)


def test_the_pooling_is_that_of_the_file(files: Path) -> None:
    with MLCEngine(str(files / "cls.gguf"), engine_config=REFERENCE) as engine:
        answer = engine.embeddings.create(input=TEXTS[0])
        assert answer.pooling == "cls"
        exact = TinyEncoder(labels=1, pooling="cls").pooled([CLS, *IDS[0], SEP])
        assert answer.data[0].embedding == pytest.approx(exact, abs=1e-5)


def test_a_folder_gives_the_same_bits(encoder: MLCEngine, files: Path) -> None:
    """With vocab.txt, and the pooling of sentence-transformers."""
    means = pooled(folder_of(ENCODER, "bert"), "mean_tokens").write(files / "means")
    with MLCEngine(str(means), engine_config=REFERENCE) as engine:
        assert vectors(engine, TEXTS) == vectors(encoder, TEXTS)
    firsts = pooled(folder_of(ENCODER, "bert"), "cls_token").write(files / "firsts")
    with MLCEngine(str(firsts), engine_config=REFERENCE) as engine:
        assert engine.embeddings.create(input="x").pooling == "cls"
    most = pooled(folder_of(ENCODER, "bert"), "max_tokens").write(files / "most")
    with (
        MLCEngine(str(most), engine_config=REFERENCE) as engine,
        pytest.raises(UserError, match="the files of this encoder ask for max_tokens pooling"),
    ):
        vectors(engine, "cat")


def test_more_texts_than_a_step_holds(encoder: MLCEngine) -> None:
    """A text is computed in one step, and has the same bits in any."""
    texts = [f"{'cat ' * (i % 17)}dog" for i in range(150)]
    together = vectors(encoder, texts)
    for i in (0, 16, 149):
        assert vectors(encoder, texts[i]) == [together[i]]


def test_the_longest_text_is_one_of_the_context(encoder: MLCEngine) -> None:
    assert len(vectors(encoder, "cat " * (CONTEXT - 2))[0]) == HIDDEN
    with pytest.raises(ContextLengthExceeded, match=f"has {CONTEXT + 1} tokens.* limit {CONTEXT}"):
        vectors(encoder, ["cat", "cat " * (CONTEXT - 1)])
    with pytest.raises(ContextLengthExceeded):
        vectors(encoder, [[5] * (CONTEXT + 1)])


def test_what_an_encoder_cannot_do_is_refused(encoder: MLCEngine, files: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    asked: list[Callable[[], object]] = [
        lambda: encoder.chat.completions.create(messages=chat),
        lambda: encoder.completions.create(prompt="hi"),
        lambda: encoder.completions.create(prompt="hi", max_tokens=0, echo=True, logprobs=0),
    ]
    for ask in asked:
        with pytest.raises(UserError, match="this model is an encoder, which writes no text"):
            ask()
    with pytest.raises(InvalidField, match=r"dimensions.*this model's vectors have 64"):
        vectors(encoder, "cat", dimensions=65)
    with pytest.raises(InvalidField, match=r"input\[1\]"):
        vectors(encoder, ["cat", ""])
    with (
        MLCEngine(str(files / "rank.gguf"), engine_config=REFERENCE) as engine,
        pytest.raises(UserError, match="the files of this encoder ask for rank pooling"),
    ):
        vectors(engine, "cat")


@pytest.mark.parametrize(
    ("field", "value", "word"),
    [
        ("prefill_chunk_size", 127, "at least 128, the longest text"),
        ("max_total_sequence_length", 4096, "leave it out"),
        ("sliding_window_size", 64, "use -1"),
        ("speculative_mode", "prompt_lookup", "use 'disable'"),
        ("kv_events", {"endpoint": "tcp://127.0.0.1:1"}, "keeps nothing"),
    ],
)
def test_settings_that_mean_nothing_are_refused(
    files: Path, field: str, value: object, word: str
) -> None:
    config = {**REFERENCE, field: value}
    with pytest.raises(InvalidField, match=f"{field}.*encoder.*{word}"):
        SyncMLCEngine(str(files / "mean.gguf"), "cpu", engine_config=config)


def test_an_encoder_drafts_nothing(files: Path) -> None:
    path = str(files / "mean.gguf")
    config = {**REFERENCE, "additional_models": [path], "speculative_mode": "small_draft"}
    with pytest.raises(MLCError, match="an encoder writes no text"):
        SyncMLCEngine(path, "cpu", engine_config=config)


def test_auto_precision_is_exact(files: Path) -> None:
    config = {**REFERENCE, "precision": "auto"}
    with MLCEngine(str(files / "mean.gguf"), engine_config=config) as engine:
        assert engine.engine_config.precision == "exact"
