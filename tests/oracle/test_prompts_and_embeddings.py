"""Log-probabilities of prompts, and embeddings, of the default model against Transformers in
float32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mlc_llm import MLCEngine
from mlc_llm.protocol.openai_api_protocol import CompletionResponse

torch = pytest.importorskip("torch", reason="the oracle extra is not installed")
pytest.importorskip("transformers", reason="the oracle extra is not installed")

from oracle import Oracle  # noqa: E402

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.model]
TEXTS = [
    "The capital of France is Paris.",
    "A cat sleeps on the sofa, and a dog sleeps under it.",
    "def fibonacci(n):\n    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)\n",
    "Größere Städte: 東京, São Paulo 🌆. " * 10,
    "x",
]
MEAN, WORST = 0.02, 0.25
"""Of a log-probability: on average, and of a single token, whose logits are rounded alone."""
COSINE = 0.99999
SMALL = {"max_num_sequence": 4, "max_total_sequence_length": 2048, "prefill_chunk_size": 256}
OPTIONS = SMALL | {"pooling": "last_token"}


@pytest.fixture(scope="module")
def oracle(default_model: Path) -> Oracle:
    return Oracle(default_model)


@pytest.fixture(scope="module")
def engine(default_model: Path) -> Iterator[MLCEngine]:
    with MLCEngine(engine_config=OPTIONS) as made:
        yield made


def test_prompts(engine: MLCEngine, oracle: Oracle) -> None:
    found = engine.completions.create(prompt=TEXTS, echo=True, logprobs=1, max_tokens=0)
    assert isinstance(found, CompletionResponse)
    for text, choice in zip(TEXTS, found.choices, strict=True):
        ids = oracle.encode(text)
        with torch.no_grad():
            logits: Any = oracle.logits(ids).astype(np.float64)
        shifted = logits - logits.max(axis=1, keepdims=True)
        exact = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        lists = choice.logprobs
        assert lists is not None and len(lists.token_logprobs) == len(ids)
        own = np.array(lists.token_logprobs[1:], np.float64)
        differences = np.abs(own - exact[np.arange(len(ids) - 1), ids[1:]])
        if len(ids) > 1:
            assert differences.mean() <= MEAN and differences.max() <= WORST, text


def test_embeddings(engine: MLCEngine, oracle: Oracle) -> None:
    found = engine.embeddings.create(input=TEXTS)
    for text, one in zip(TEXTS, found.data, strict=True):
        with torch.no_grad():
            output = oracle.model(torch.tensor([oracle.encode(text)]), output_hidden_states=True)
        exact = output.hidden_states[-1][0, -1].double().numpy()
        cosine = np.dot(exact / np.linalg.norm(exact), np.array(one.embedding))
        print(f"{1 - cosine:.2e}", repr(text[:20]))
        assert cosine >= COSINE, text
