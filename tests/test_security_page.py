"""docs/security.md names tests that there are, and the limits that the server has."""

from __future__ import annotations

import re
from pathlib import Path

from mlc_llm.serve.server.limits.settings import Limits

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_promise_names_a_test_that_there_is() -> None:
    rows = [line for line in TEXT.split("## Limits")[0].splitlines() if line.startswith("| ")]
    promises = [row for row in rows if not row.startswith("| promise")]
    assert len(promises) >= 40
    for row in promises:
        files = re.findall(r"`((?:\w+/)*test_\w+\.py)`", row)
        assert files, row
        assert [name for name in files if not (ROOT / "tests" / name).is_file()] == [], row


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
