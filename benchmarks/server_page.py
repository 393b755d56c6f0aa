"""Writes what `server.py` has measured into docs/performance.md."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "performance.md"


def marks(name: str) -> tuple[str, str]:
    """What stands before and behind the block of a command."""
    return f"<!-- server.py {name} -->", f"<!-- end of server.py {name} -->"


def with_block(text: str, name: str, content: str) -> str:
    """The text with the block of a command replaced. Raises ValueError if a mark does not occur
    once."""
    begin, end = marks(name)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page needs the marks {begin!r} and {end!r} once each")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def write(name: str, content: str, page: Path = PAGE) -> None:
    """Replace the block of a command in the page. Raises as `with_block`."""
    text = page.read_text(encoding="utf-8")
    page.write_text(with_block(text, name, content), encoding="utf-8")
