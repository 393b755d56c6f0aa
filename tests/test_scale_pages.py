"""What scripts write into docs/scale.md."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import ranks
import scale_chaos
import scale_ingress
import server_page


@pytest.mark.parametrize("script", ["ranks.py", "scale_chaos.py", "scale_ingress.py"])
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


def test_all_that_was_wrong_in_chaos_is_counted() -> None:
    args = argparse.Namespace(
        model="mock://echo", replicas=2, clients=3, tokens=4, seconds=60.0, grown=0.0
    )
    tally = scale_chaos.Tally(whole=7, kills=5, longest_s=1.25)
    tally.wrong.update(["another text", "another text", "2 ends, 1 usages, 1 [DONE]"])
    text = scale_chaos.table(args, tally, 9)
    assert "| seconds, kills of replicas | 60, 5 |" in text
    assert "| requests sent to another replica | 9 times |" in text
    assert "| **wrong**: another text | 2 |" in text
    assert text.endswith("| 3 |")


def test_an_answer_is_whole_or_named() -> None:
    true = scale_chaos.Answer("one two", ["length"], [2], 1)
    assert scale_chaos.Answer("one two", ["length"], [2], 1).wrong(true) is None
    assert scale_chaos.Answer("one one", ["length"], [2], 1).wrong(true) == "another text"
    for broken in (
        scale_chaos.Answer("one two", [], [2], 1),
        scale_chaos.Answer("one two", ["length"], [2, 2], 1),
        scale_chaos.Answer("one two", ["length"], [2], 0),
        scale_chaos.Answer("one two", ["length"], [2], 1, error="lost"),
    ):
        assert broken.wrong(true) not in (None, "another text")


def test_what_the_ingress_adds_is_in_rows() -> None:
    """For each workload, by the medians."""
    equal, others = scale_ingress.ANSWERS
    found: scale_ingress.Found = {
        (equal, 32, "mlc_llm serve"): [(20.0, 1000.0), (30.0, 900.0), (10.0, 1100.0)],
        (equal, 32, "Ray Serve"): [(30.0, 900.0), (20.0, 1000.0), (90.0, 800.0)],
        (others, 32, "mlc_llm serve"): [(20.0, 1000.0)],
        (others, 32, "Ray Serve"): [(19.0, 1100.0)],
    }
    rows = scale_ingress.table(found).splitlines()
    expected = "| 100 each | 32 | Ray Serve | 30.0 (20.0 to 90.0) | 900.0 (800.0 to 1000.0) |"
    assert rows[3] == expected and len(rows) == 6
    assert scale_ingress.added(found).splitlines()[2:] == [
        "| 100 each | 32 | +10.0 | -10.0% |",
        "| 60 to 140 | 32 | -1.0 | +10.0% |",
    ]


def test_the_hard_workload_is_always_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers of one length: all clients end, and ask, in the same moment."""
    asked: list[tuple[int, int]] = []

    def measure(served: object, clients: int, requests: int, number: int, answer: tuple[int, int]):
        asked.append(answer)
        return 1.0, 1.0

    monkeypatch.setattr(scale_ingress, "measure", measure)
    scale_ingress.measured(["plain", "ray"], [1, 32], 2, 4)  # type: ignore[list-item]
    for answer in ((100, 100), (60, 140)):
        assert asked.count(answer) == 2 * 2 * 2  # ways, numbers of clients, rounds


def test_events_are_read_whatever_chunks_they_come_in() -> None:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        body = b'data: {"a": 1}\n\ndata: [DONE]\n\n'
        for start, end in ((0, 9), (9, 17), (17, len(body))):
            piece = body[start:end]
            reader.feed_data(b"%x\r\n%s\r\n" % (len(piece), piece))
        reader.feed_data(b"0\r\n\r\n")
        reader.feed_eof()
        return [data async for data in scale_chaos._events(reader)]

    assert asyncio.run(read()) == [b'{"a": 1}', b"[DONE]"]
