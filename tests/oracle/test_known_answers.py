"""Greedy text of the default model equals the float32 oracle's, to the last id."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import common
import ours
import pytest

CASES = common.read_json("greedy.json")["cases"]


@pytest.fixture(scope="module")
def runner() -> Iterator[Any]:
    """The kernels that users get."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("MLC_LLM_KERNELS", raising=False)
        patch.setenv("MLC_NUM_THREADS", "2")  # `open_runner` sets it too; restored afterwards
        yield ours.open_runner(common.model_path(None), None, 2)


@pytest.mark.model
@pytest.mark.parametrize("case", CASES, ids=[case["prompt"][:20] for case in CASES])
def test_greedy_answer_is_the_oracles(runner: Any, case: dict[str, Any]) -> None:
    assert ours.greedy(runner, case["prompt_ids"], len(case["answer_ids"])) == case["answer_ids"]


@pytest.mark.model
def test_known_answers_belong_to_the_default_model() -> None:
    assert common.digest(common.model_path(None)) == common.read_json("greedy.json")["model_sha256"]
