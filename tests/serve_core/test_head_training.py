"""What draft heads learn from, on the fake model. Training itself needs torch and minutes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from core_harness import PieceTokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from common import read_json
from head_texts import prompts, write_answers

from mlc_llm.testing.fake_runner import HIDDEN, FakeRunner
from mlc_llm.testing.fake_sampling import fake_logits


def test_prompts_that_heads_are_tried_with_are_not_learnt() -> None:
    found = prompts()
    assert len(found) > 350 and len(set(found)) == len(found)
    assert not any(asked in one for one in found for asked in read_json("prompts.json")["chat"])


def test_each_token_has_the_vector_that_it_was_chosen_with() -> None:
    runner = FakeRunner(num_pages=4000, max_num_sequence=32, max_batch_tokens=64)
    tokenizer: Any = PieceTokenizer()
    (answers,) = write_answers(runner, tokenizer, count=2, length=6)
    assert len(answers) == 2
    for one in answers:
        assert 3 <= len(one.vectors) <= 5
        assert one.first + len(one.vectors) == len(one.tokens) - 1  # all but the last token
        for i, vector in enumerate(one.vectors):
            logits = fake_logits(one.tokens[: one.first + i], 300)
            np.testing.assert_allclose(vector, logits[:HIDDEN], rtol=1e-3)
