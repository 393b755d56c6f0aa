"""What scripts write into docs/scale.md."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import ranks
import server_page


@pytest.mark.parametrize("script", ["ranks.py"])
def test_the_page_has_the_marks(script: str) -> None:
    text = server_page.SCALE.read_text(encoding="utf-8")
    assert "new" in server_page.with_block(text, "", "new", script)


def test_ranks_beside_one_process() -> None:
    """The ratio is that of the medians; above 1, two ranks are faster."""
    samples = {
        ("default", "prefill 512", ranks.ONE): [100.0, 90.0, 300.0],
        ("default", "prefill 512", ranks.TWO): [80.0, 50.0, 40.0],
    }
    *_, row = ranks.table(samples).splitlines()
    assert row.startswith("| default model, prompt of 512 tokens | 100.0 (90.0 to 300.0) |")
    assert row.endswith("| 50.0 (40.0 to 80.0) | 0.50 |")
