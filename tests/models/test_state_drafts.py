"""Draft tokens with models that keep states: each text is that of plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import rwkv7_reference
import test_lfm2
from same_text import NARROW, Answers, Opened, alone

WRITERS: dict[str, Callable[[Path], Path]] = {
    "lfm2": test_lfm2.write_model,
    "rwkv7": rwkv7_reference.write_model,
}


@pytest.fixture(scope="module", params=WRITERS)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return WRITERS[request.param](tmp_path_factory.mktemp("states") / "model.gguf")


@pytest.fixture(scope="module")
def expected(model: Path) -> Answers:
    return alone(model, "portable")


@pytest.mark.one_of(2)
@pytest.mark.parametrize("limits", [{}, {"max_num_sequence": 1}, NARROW], ids=["", "one", "narrow"])
def test_the_same_texts(model: Path, expected: Answers, limits: dict[str, int]) -> None:
    drafting = Opened(model, "portable", speculative_mode="prompt_lookup", **limits)
    assert drafting.together() == expected
    assert drafting.counted("draft_count") > 0
    assert drafting.together() == expected, "from the prefix cache"
