"""docs/security.md names tests that there are, and the limits that the server has."""

from __future__ import annotations

import re
from pathlib import Path

from mlc_llm.serve.server.limits.settings import Limits

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


HAZARDS = 60
"""The numbers of the page."""


def rows() -> list[list[str]]:
    """Number, promise and tests of each row."""
    lines = [line for line in TEXT.split("## Limits")[0].splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if row[0] != "no."]


def test_every_promise_names_tests_that_there_are() -> None:
    for row in rows():
        named, wrong = 0, []
        text = ""
        for word in re.findall(r"`((?:\w+/)*\w+(?:\.py)?)`", row[-1]):
            if word.endswith(".py"):
                file = ROOT / "tests" / word
                text = file.read_text(encoding="utf-8") if file.is_file() else ""
            named += not word.endswith(".py")
            is_there = re.search(rf"^(def {word}\(|{word} = )", text, re.MULTILINE)
            if not (text if word.endswith(".py") else is_there):
                wrong.append(word)
        assert named and wrong == [], f"{row[1]}: {wrong}"


def test_no_hazard_is_without_an_answer() -> None:
    numbers = [row[0] for row in rows() if row[0]]
    assert numbers == [str(number) for number in range(1, HAZARDS + 1)]


def test_limits_are_those_of_the_server() -> None:
    limits = Limits()
    for words, value in (
        ("size of a request", limits.body_bytes >> 20),
        ("size of a head", limits.header_bytes >> 10),
        ("time for the head, for the body", limits.header_s),
        ("time in which a reader takes nothing", limits.write_s),
        ("idle connection", limits.keep_alive_s),
        ("connections", limits.connections),
        ("answers that wait", limits.queue),
        ("prompt tokens that wait for a model", limits.queue_tokens),
        ("time in which a turn comes", limits.wait_s),
        ("time of a stalled engine", limits.stall_s),
        ("time for running answers at the end", limits.drain_s),
    ):
        (row,) = re.findall(rf"^\| {re.escape(words)} \| (\d+)", TEXT, re.MULTILINE)
        assert int(row) == value, words
