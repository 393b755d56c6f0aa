"""Writes what a script has measured into a page of `docs`."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "performance" / "server.md"
SCALE = DOCS / "scale.md"
SERVER = "server.py"


def marks(name: str, script: str = SERVER) -> tuple[str, str]:
    """What stands before and behind the block of a command. name: may be empty."""
    title = f"{script} {name}".strip()
    return f"<!-- {title} -->", f"<!-- end of {title} -->"


def with_block(text: str, name: str, content: str, script: str = SERVER) -> str:
    """The text with the block of a command replaced. Raises ValueError if a mark does not occur
    once."""
    begin, end = marks(name, script)
    if text.count(begin) != 1 or text.count(end) != 1:
        raise ValueError(f"the page needs the marks {begin!r} and {end!r} once each")
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}"


def write(name: str, content: str, page: Path = PAGE, script: str = SERVER) -> None:
    """Replace the block of a command in the page. Raises as `with_block`."""
    text = page.read_text(encoding="utf-8")
    page.write_text(with_block(text, name, content, script), encoding="utf-8")
