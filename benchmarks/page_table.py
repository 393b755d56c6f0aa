"""Tables of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

NOT_MEASURED = "not measured"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
