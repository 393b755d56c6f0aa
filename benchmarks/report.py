"""What a run of `compare.py` found, as text for a terminal and as a part of the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from figures import TITLES, markdown, speeds, table
from rounds import Results

BEGIN, END = "<!-- compare: begin", "<!-- compare: end -->"


BUSY = 1.0
"""Load above the number of threads that is not ours any more."""


def disturbance(results: Results) -> list[str]:
    """A warning if others computed during the rounds."""
    most = max(results.loads, default=0.0)
    if most <= int(results.configuration.get("threads", "2")) + BUSY:
        return []
    return [f"**Others computed meanwhile (load up to {most:.1f}): this run proves nothing.**", ""]


def text(results: Results) -> str:
    """The configuration, what is missing, the table of figures, and every speed."""
    lines = [f"  {name:14s} {value}" for name, value in results.configuration.items()]
    lines += [f"  not measured   {key}: {reason}" for key, reason in results.missing.items()]
    return "\n".join([*lines, "", *disturbance(results), *_tables(results)])


def block(results: Results, plots: Sequence[str]) -> str:
    """The same in Markdown; plots: addresses of pictures, seen from the document."""
    lines = ["Configuration:", ""]
    lines += [f"* {name}: {value}" for name, value in results.configuration.items()]
    lines += [f"* not measured: {key}: {reason}" for key, reason in results.missing.items()]
    pictures = [f"![{Path(plot).stem}]({plot})" for plot in plots]
    lines += ["", *disturbance(results), *_tables(results), "", *pictures]
    return "\n".join(lines)


def _tables(results: Results) -> list[str]:
    lines = [markdown(table(results))]
    for model in results.samples:
        if results.sides(model, "decode") or results.sides(model, "cold start"):
            title = TITLES[model]
            lines += ["", f"{title[0].upper()}{title[1:]}:", "", speeds(results, model)]
    return lines


def write_block(document: Path, content: str) -> None:
    """Replace what stands between the two marks. ValueError if they are not there once each."""
    old = document.read_text(encoding="utf-8")
    if old.count(BEGIN) != 1 or old.count(END) != 1:
        raise ValueError(f"{document}: needs the marks {BEGIN!r} and {END!r} once each")
    start = old.index("\n", old.index(BEGIN)) + 1
    new = old[:start] + content + "\n" + old[old.index(END) :]
    document.write_text(new, encoding="utf-8")
