"""The results of `compare.py`, as text for a terminal and as a part of the documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from common import Spread
from figure_rows import TITLES, markdown
from figures import CONTEXT, STREAMS, rates, table
from rounds import Results

SPEEDS = ("decode", "prefill 512", "prefill 2048", "32 streams")
STARTS = ("cold start", "first start", "first start, other sizes")
BEGIN, END = "<!-- compare: begin", "<!-- compare: end -->"
BUSY = 1.0
"""If the load is more than this above the number of threads, other programs were computing."""


def disturbance(results: Results) -> list[str]:
    """A warning if other programs computed during the rounds."""
    most = max(results.loads, default=0.0)
    if most <= int(results.configuration.get("threads", "2")) + BUSY:
        return []
    return [f"**Others computed meanwhile (load up to {most:.1f}): this run proves nothing.**", ""]


def text(results: Results) -> str:
    """The configuration, what is missing, the table of figures, and all speeds."""
    lines = [f"  {name:14s} {value}" for name, value in results.configuration.items()]
    lines += [f"  not measured   {key}: {reason}" for key, reason in results.missing.items()]
    return "\n".join([*lines, "", *disturbance(results), *_tables(results)])


def block(results: Results, plots: Sequence[str]) -> str:
    """The same in Markdown. plots: paths of pictures, relative to the document."""
    lines = ["Configuration:", ""]
    lines += [f"* {name}: {value}" for name, value in results.configuration.items()]
    lines += [f"* not measured: {key}: {reason}" for key, reason in results.missing.items()]
    pictures = [f"![{Path(plot).stem}]({plot})" for plot in plots]
    lines += ["", *disturbance(results), *_tables(results), "", *pictures]
    return "\n".join(lines)


def _tables(results: Results) -> list[str]:
    rows = table(results)
    lines = [markdown(rows)] if rows else []
    for model in results.samples:
        title = TITLES.get(model, model)
        parts = [make(results, model) for make in (speeds, starts, curves)]
        for part in filter(None, [f"{title[0].upper()}{title[1:]}:" * any(parts), *parts]):
            lines += ["", part]
    return lines


def speeds(results: Results, model: str) -> str:
    """All speeds of a model as a table in Markdown, with a column for each side."""
    return _by_side(results, model, "tok/s", lambda what: what in SPEEDS)


def starts(results: Results, model: str) -> str:
    """The same for what is measured in seconds."""
    return _by_side(results, model, "seconds", lambda what: what in STARTS)


def curves(results: Results, model: str) -> str:
    """Our speeds against streams and against context, as lines of text."""
    lines = []
    for name, prefix in (("streams", STREAMS), ("tokens of context", CONTEXT)):
        if points := rates(results, model, prefix):
            found = ", ".join(f"{rate:.4g} at {n}" for n, rate in points.items())
            lines.append(f"Ours against {name}, tok/s of all streams, medians: {found}.")
    return "\n\n".join(lines)


def _by_side(results: Results, model: str, unit: str, belongs: Callable[[str], bool]) -> str:
    """A table in Markdown; empty if there is no such test."""
    tests = [what for what in results.samples.get(model, {}) if belongs(what)]
    if not tests:
        return ""
    sides = list(dict.fromkeys(side for t in tests for side in results.sides(model, t)))
    lines = [f"| {unit} | {' | '.join(sides)} |", "|---" * (len(sides) + 1) + "|"]
    for test in tests:
        found = results.sides(model, test)
        cells = [str(Spread.of(found[side])) if found.get(side) else "–" for side in sides]
        lines.append(f"| {test} | {' | '.join(cells)} |")
    return "\n".join(lines)


def marked_text(document: Path) -> str:
    """The text of the document. Raises ValueError if a mark does not occur once; OSError."""
    text = document.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{document}: needs the marks {BEGIN!r} and {END!r} once each")
    return text


def write_block(document: Path, content: str) -> None:
    """Replace the text between the two marks. Raises what `marked_text` raises."""
    old = marked_text(document)
    start = old.index("\n", old.index(BEGIN)) + 1
    new = old[:start] + content + "\n" + old[old.index(END) :]
    document.write_text(new, encoding="utf-8")
