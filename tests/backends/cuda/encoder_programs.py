"""What tests of encoders run in processes where the stand-in is CUDA."""

from __future__ import annotations

import gc
import json
from collections.abc import Sequence
from pathlib import Path

import model_programs  # noqa: F401  (the stand-in has little memory)
import numpy as np
from fake_cuda import Fake
from tiny_encoders import VOCABULARY

from mlc_llm.precision import Precision
from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.runtime.encoder_runner import EncoderRunner

LENGTHS = (1, 5, 16, 17, 70, 2)
"""Texts that fill pages, and blocks of queries, and those that do not."""


def texts_of(longest: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.integers(0, VOCABULARY, min(count, longest)).tolist() for count in LENGTHS]


def computed(
    runner: EncoderRunner, texts: Sequence[list[int]], second_at: int = 0
) -> list[list[float]]:
    """The vectors of texts in one step."""
    wanted = Sampling(wants_hidden=True)
    rows = [
        BatchRow(i, text, [wanted], len(text), second_at=second_at) for i, text in enumerate(texts)
    ]
    for row in rows:
        runner.add_sequence(row.seq_id)
    samples = [one for (one,) in runner.run(Batch(rows)).samples]
    runner.reset()
    assert all(one.error is None for one in samples)
    return [list(one.hidden or ()) for one in samples]


def vectors(
    library: str,
    weights: str,
    out: str,
    longest: int,
    precision: Precision = "exact",
) -> None:
    """Saves the vectors of texts, and behind them the scores of pairs, if there are any. Whatever
    else is in the step, a text has the same bits."""
    runner = EncoderRunner(
        Path(library), Path(weights),
        pooling="mean", max_num_sequence=8, max_batch_tokens=320, context_window=longest,
        precision=precision,
    )  # fmt: skip
    texts = texts_of(longest)
    found = computed(runner, texts)
    assert [computed(runner, [text])[0] for text in texts] == found, "in another step"
    scores = computed(runner, texts[1:], second_at=1) if runner.limits.scores else []
    np.savez(out, vectors=np.array(found), scores=np.array(scores))


def embeddings(model: str, library: str, *texts: str) -> None:
    """Prints the embeddings of texts, alone and together, and what is alive at the end."""
    from mlc_llm import MLCEngine

    made = MLCEngine(model, "cuda", model_lib=library)
    alone = [made.embeddings.create(input=one).data[0].embedding for one in texts]
    together = [one.embedding for one in made.embeddings.create(input=[*texts]).data]
    made.terminate()
    del made
    gc.collect()
    print(json.dumps([alone, together, Fake().alive()]))
