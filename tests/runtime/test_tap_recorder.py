"""What EAGLE heads learn from: vectors of the model's layers, as `tap_recorder.py` keeps them."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from decoder_reference import ReferenceDecoder
from tiny_models import TinyModels

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from tap_recorder import Recorded, open_recorder

from mlc_llm.runtime.batch import Batch, BatchRow, Sampling
from mlc_llm.serve.config import EngineConfig

TEXT = np.random.default_rng(5).integers(0, 256, 40).tolist()
CONFIG = EngineConfig(
    max_num_sequence=4,
    max_total_sequence_length=512,
    max_single_sequence_length=128,
    prefill_chunk_size=64,
)
GREEDY = Sampling(temperature=0.0)


@pytest.mark.slow
def test_each_text_comes_with_the_vectors_of_all_its_tokens(tiny_models: TinyModels) -> None:
    path, taps = tiny_models.path("plain"), (0, 1, 2)
    heard: list[Recorded] = []
    runner = open_recorder(path, taps, CONFIG, "exact", heard.append)
    for seq_id in (0, 1, 2):
        runner.add_sequence(seq_id)
    runner.run(Batch([BatchRow(0, TEXT[:21], [GREEDY], 21), BatchRow(1, TEXT[:7], [], 7)]))
    for token in TEXT[21:38]:
        runner.run(Batch([BatchRow(0, [token], [GREEDY]), BatchRow(1, [token], [GREEDY])]))
    for seq_id in (0, 1, 2):
        runner.remove_sequence(seq_id)
    runner.check_integrity()
    assert [one.tokens for one in heard] == [TEXT[:38], TEXT[:7] + TEXT[21:38]]
    assert [one.first for one in heard] == [21, 7]
    for one in heard:
        model = ReferenceDecoder(path)
        model.hidden(one.tokens)
        wanted = np.concatenate([model.behind[i] for i in taps], axis=1)
        far = np.abs(one.vectors - wanted).max()
        assert far < 0.02 * np.abs(wanted).max(), far
