"""The measurements of the server, without a server: options, tables, the blocks of the page."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

import server
import server_page
from bare_engine import Bare
from server_compare import EARLY, LATE, MEMORY, SPEED, table, works
from server_overload import FULL, Load, _table

from mlc_llm.bench.client import Result


def test_options() -> None:
    given = server.parse(["compare", "--llama-server", "x"])
    assert (given.rounds, given.answer, given.write) == (3, 64, False)
    assert server.parse(["overload"]).seconds == 60.0
    assert server.parse(["cost", "--write", "--rounds", "2"]).write


@pytest.mark.parametrize("wrong", [[], ["compare"], ["cost", "--seconds", "3"]])
def test_wrong_options_are_refused(wrong: list[str]) -> None:
    with pytest.raises(SystemExit):
        server.parse(wrong)


def test_the_table_has_medians_and_their_ratios() -> None:
    fast = [{SPEED: one, EARLY: 10.0, LATE: 20.0} for one in (100.0, 300.0, 200.0)]
    slow = [{SPEED: 50.0, EARLY: 40.0}]
    rows = {("a", "8"): fast, ("b", "8"): slow}
    rows |= {("a", MEMORY): [{MEMORY: 700.0}], ("b", MEMORY): [{MEMORY: 7000.0}]}
    text = table(["a", "b"], rows, 3)
    assert "| 8 | 200, 50, **4.00** | 10, 40, **0.25** | 20, –, – |" in text
    assert text.endswith("Memory at the end: 700 MB and 7,000 MB.")


def test_enough_requests_for_each_client() -> None:
    points = works(16, 64)
    assert {name: work.requests for name, (_, work) in points.items()} == {
        **{"1": 16, "8": 16, "32": 48, "128": 192},
        "8, the first 1,000 words the same": 16,
    }


def load(clients: int, seconds: float) -> Load:
    found = Load(clients, server_s=3.0, own_s=1.0)
    found.point.add(Result(ttft=0.1, total=seconds, answer_tokens=32, is_counted=True))
    found.point.add(Result(error="status 503"))
    found.point.seconds = seconds
    return found


def test_the_table_of_an_overload() -> None:
    text = _table([load(FULL, 2.0), load(10 * FULL, 4.0)], 2.0)
    assert "| 640 | 1 | 1 | 4,000 | 4,000 | 100 | 8 | 0 | 0 to 0 | 25 % |" in text
    assert "2.00 times as long, 50 % of the tokens a second" in text


def test_a_block_of_the_page_is_replaced(tmp_path: Path) -> None:
    begin, end = server_page.marks("cost")
    page = tmp_path / "page.md"
    page.write_text(f"a\n{begin}\nold\n{end}\nb\n", encoding="utf-8")
    server_page.write("cost", "new", page)
    server_page.write("cost", "newer", page)
    assert page.read_text(encoding="utf-8") == f"a\n{begin}\n\nnewer\n\n{end}\nb\n"
    with pytest.raises(ValueError, match="overload"):
        server_page.write("overload", "new", page)


@pytest.mark.parametrize("name", ["compare", "overload", "cost"])
def test_the_page_has_the_marks(name: str) -> None:
    text = server_page.PAGE.read_text(encoding="utf-8")
    assert "new" in server_page.with_block(text, name, "new")


def test_the_bare_engine_counts_ends() -> None:
    bare = Bare("mock://echo", 4)
    try:
        assert bare.run([[65, 66], [67]], 4)["seconds"] > 0
        assert bare.run([[68]], 1)["processor_s"] >= 0
    finally:
        bare.close()
